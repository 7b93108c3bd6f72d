// Operators, attributes, items and iteration, with the rules of Python's objects.
#include <algorithm>
#include <cmath>

#include "hub/model/jinja/renderer.h"
#include "hub/model/jinja/text_format.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex::jinja {
namespace {

[[noreturn]] void no_operator(const char* symbol, const Value& left, const Value& right) {
    const Undefined* undefined = std::get_if<Undefined>(&left.data);
    if (!undefined) undefined = std::get_if<Undefined>(&right.data);
    if (undefined) fail(text("'", undefined->name, "' is undefined"));
    fail(text("no ", symbol, " between ", kind_name(left), " and ", kind_name(right)));
}

enum class Integer { add, subtract, multiply };
std::int64_t integer_math(Integer op, std::int64_t a, std::int64_t b) {
    std::int64_t out = 0;
    const bool overflow = op == Integer::add        ? __builtin_add_overflow(a, b, &out)
                          : op == Integer::subtract ? __builtin_sub_overflow(a, b, &out)
                                                    : __builtin_mul_overflow(a, b, &out);
    if (overflow) fail("an integer beyond 64 bits");
    return out;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
    if (b == 0) fail("division by zero");
    if (b == -1) return integer_math(Integer::subtract, 0, a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

Value integer_power(std::int64_t base, std::int64_t exponent) {
    if (exponent < 0) {
        if (base == 0) fail("zero to a negative power");
        return make_float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
    }

    std::int64_t out = 1;
    // The multiplication loop below is bounded, because the power of a base with |base| > 1
    // overflows within 64 steps.
    if (base == 0 || base == 1) return make_integer(exponent == 0 ? 1 : base);
    if (base == -1) return make_integer(exponent % 2 == 0 ? 1 : -1);

    for (std::int64_t i = 0; i < exponent; ++i) out = integer_math(Integer::multiply, out, base);
    return make_integer(out);
}

double checked_divisor(const Value& right) {
    if (right.number() == 0) fail("division by zero");
    return right.number();
}

// Both operands of an operator, with their kinds, which are determined once.
struct Sides {
    const Value &left, &right;
    bool numbers = left.is_number() && right.is_number();
    bool floats = numbers && (left.is_float() || right.is_float());
};

Value add(Renderer& renderer, const Sides& sides) {
    const auto& [left, right, numbers, floats] = sides;
    if (floats) return make_float(left.number() + right.number());
    if (numbers) return make_integer(integer_math(Integer::add, left.integer(), right.integer()));

    if (left.text() && right.text()) {
        renderer.charge_bytes(left.text()->size() + right.text()->size());
        MarkedText joined = *left.text();
        joined.append(*right.text());
        return make_text(std::move(joined));
    }

    if (left.list() && right.list() && left.list()->tuple == right.list()->tuple) {
        std::vector<Value> items = left.list()->items;
        items.insert(items.end(), right.list()->items.begin(), right.list()->items.end());
        renderer.charge(items.size());
        return make_list(std::move(items), left.list()->tuple);
    }

    no_operator("+", left, right);
}

Value subtract(const Sides& sides) {
    const auto& [left, right, numbers, floats] = sides;
    if (!numbers) no_operator("-", left, right);
    if (floats) return make_float(left.number() - right.number());
    return make_integer(integer_math(Integer::subtract, left.integer(), right.integer()));
}

// Evaluates the repetition of a text or a list, 'ab' * 3 and [1] * 3, in either order of the
// operands.
Value repeat(Renderer& renderer, const Value& many, std::int64_t times) {
    const std::uint64_t steps_max = renderer.limits().steps_max;
    const auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(times, 0));
    const std::uint64_t size = many.text() ? 1 + many.text()->size() / 64
                                           : many.list()->items.size() + 1;
    if (count > steps_max) renderer.charge(steps_max + 1);
    renderer.charge(count * std::min<std::uint64_t>(size, steps_max / (count + 1) + 1));

    if (many.text()) {
        MarkedText repeated;
        for (std::uint64_t i = 0; i < count; ++i) repeated.append(*many.text());
        return make_text(std::move(repeated));
    }

    std::vector<Value> items;
    for (std::uint64_t i = 0; i < count; ++i)
        items.insert(items.end(), many.list()->items.begin(), many.list()->items.end());
    return make_list(std::move(items), many.list()->tuple);
}

Value multiply(Renderer& renderer, const Sides& sides) {
    const auto& [left, right, numbers, floats] = sides;
    if (floats) return make_float(left.number() * right.number());
    if (numbers)
        return make_integer(integer_math(Integer::multiply, left.integer(), right.integer()));

    const Value& many = left.is_integer() ? right : left;
    const Value& times = left.is_integer() ? left : right;
    if (!times.is_integer() || (!many.text() && !many.list())) no_operator("*", left, right);
    return repeat(renderer, many, times.integer());
}

Value divide(const Sides& sides) {
    if (!sides.numbers) no_operator("/", sides.left, sides.right);
    return make_float(sides.left.number() / checked_divisor(sides.right));
}

Value divide_down(const Sides& sides) {
    const auto& [left, right, numbers, floats] = sides;
    if (!numbers) no_operator("//", left, right);
    if (floats) return make_float(std::floor(left.number() / checked_divisor(right)));
    return make_integer(floor_divide(left.integer(), right.integer()));
}

Value modulo(Renderer& renderer, const Sides& sides) {
    const auto& [left, right, numbers, floats] = sides;
    if (left.text()) {
        renderer.charge_bytes(left.text()->size());
        renderer.charge(weight_of(right));
        return make_text(format_percent(renderer, *left.text(), right));
    }

    if (!numbers) no_operator("%", left, right);
    if (floats) {
        const double divisor = checked_divisor(right);
        const double rest = std::fmod(left.number(), divisor);
        return make_float(rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest);
    }

    if (right.integer() == -1) return make_integer(0);
    return make_integer(left.integer() -
                        floor_divide(left.integer(), right.integer()) * right.integer());
}

Value raise_to(const Sides& sides) {
    const auto& [left, right, numbers, floats] = sides;
    if (!numbers) no_operator("**", left, right);
    if (floats) return make_float(std::pow(left.number(), right.number()));
    return integer_power(left.integer(), right.integer());
}

Value concat(Renderer& renderer, const Sides& sides) {
    renderer.charge(weight_of(sides.left) + weight_of(sides.right));
    MarkedText joined = print(sides.left);
    joined.append(print(sides.right));
    return make_text(std::move(joined));
}

}  // namespace

Value Renderer::binary(Operator op, const Value& left, const Value& right) {
    const Sides sides{left, right};
    switch (op) {
        case Operator::add: return add(*this, sides);
        case Operator::subtract: return subtract(sides);
        case Operator::multiply: return multiply(*this, sides);
        case Operator::divide: return divide(sides);
        case Operator::floor_divide: return divide_down(sides);
        case Operator::modulo: return modulo(*this, sides);
        case Operator::power: return raise_to(sides);
        case Operator::concat: return concat(*this, sides);
        default: return make_bool(compare_values(op, left, right));
    }
}

bool Renderer::compare_values(Operator op, const Value& left, const Value& right) {
    charge(std::min(weight_of(left), weight_of(right)));
    switch (op) {
        case Operator::equal: return equal(left, right);
        case Operator::not_equal: return !equal(left, right);
        case Operator::less: return compare(left, right) < 0;
        case Operator::less_equal: return compare(left, right) <= 0;
        case Operator::greater: return compare(left, right) > 0;
        case Operator::greater_equal: return compare(left, right) >= 0;
        case Operator::in: return contains(right, left);
        case Operator::not_in: return !contains(right, left);
        default: return false;
    }
}

bool Renderer::contains(const Value& container, const Value& item) {
    charge(weight_of(container));
    if (container.text())
        return container.text()->bytes().find(text_argument(item, "in a string").bytes()) !=
               std::string::npos;
    if (container.dict()) return container.dict()->find(item) != nullptr;

    if (container.list()) {
        const auto& items = container.list()->items;
        return std::any_of(items.begin(), items.end(),
                           [&](const Value& other) { return equal(item, other); });
    }

    if (container.is_undefined()) return false;
    fail(text("'in' wants a string, list or mapping, got ", kind_name(container)));
}

ListPointer Renderer::items_of(const Value& value) {
    if (const auto* list = std::get_if<ListPointer>(&value.data)) return *list;
    List out;
    if (value.text()) {
        charge(value.text()->size());
        const std::vector<std::size_t> starts = code_point_starts(value.text()->bytes());
        for (std::size_t i = 0; i + 1 < starts.size(); ++i)
            out.items.push_back(make_text(value.text()->part(starts[i], starts[i + 1])));
    } else if (value.dict()) {
        charge(value.dict()->entries.size());
        for (const auto& [key, item] : value.dict()->entries) out.items.push_back(key);
    } else if (!value.is_undefined()) {
        fail(text(kind_name(value), " cannot be iterated"));
    }

    out.weight = 1 + out.items.size();
    return std::make_shared<const List>(std::move(out));
}

namespace {

// Returns a callable that binds a method to its object. `name` must come from method_of(), because
// a name that the template composed would no longer exist when the method is called.
Value bound_method(const Value& object, std::string_view name) {
    auto callable = std::make_shared<Callable>();
    callable->name = name;
    callable->method = true;
    callable->self = object;
    return {std::shared_ptr<const Callable>(std::move(callable))};
}

Value loop_attribute(const Loop& loop, std::string_view name) {
    const auto index = static_cast<std::int64_t>(loop.index),
               length = static_cast<std::int64_t>(loop.items->items.size());
    if (name == "index") return make_integer(index + 1);
    if (name == "index0") return make_integer(index);
    if (name == "revindex") return make_integer(length - index);
    if (name == "revindex0") return make_integer(length - index - 1);
    if (name == "first") return make_bool(index == 0);
    if (name == "last") return make_bool(index + 1 == length);
    if (name == "length") return make_integer(length);
    if (name == "depth") return make_integer(loop.depth);
    if (name == "depth0") return make_integer(loop.depth - 1);
    if (name == "previtem")
        return index > 0 ? loop.items->items[loop.index - 1] : make_undefined("loop.previtem");
    if (name == "nextitem")
        return index + 1 < length ? loop.items->items[loop.index + 1]
                                  : make_undefined("loop.nextitem");

    return make_undefined(std::string(name));
}

}  // namespace

Value Renderer::attribute_of(const Value& object, std::string_view name) {
    if (const Undefined* undefined = std::get_if<Undefined>(&object.data))
        fail(text("'", undefined->name, "' is undefined, so it has no '", name, "'"));

    if (const std::string_view method = method_of(object, name); !method.empty())
        return bound_method(object, method);

    if (const Namespace* state = object.name_space()) {
        if (state->kind == Namespace::Kind::cycler && name == "current")
            return state->items[state->position];
        const auto found = state->attributes.find(name);
        return found == state->attributes.end() ? make_undefined(std::string(name)) : found->second;
    }

    if (const Loop* loop = object.loop()) return loop_attribute(*loop, name);
    if (object.dict())
        if (const Value* item = object.dict()->find(name)) return *item;

    return make_undefined(std::string(name));
}

Value Renderer::item_of(const Value& object, const Value& key) {
    if (const Undefined* undefined = std::get_if<Undefined>(&object.data))
        fail(text("'", undefined->name, "' is undefined, so it has no items"));

    if (object.dict()) {
        const Value* item = object.dict()->find(key);
        return item ? *item : make_undefined(key.text() ? key.text()->bytes() : "item");
    }

    if (key.text()) return attribute_of(object, key.text()->bytes());
    if (!key.is_integer() && !key.is_bool()) return make_undefined("item");

    std::int64_t at = key.integer();
    if (object.list()) {
        const auto& items = object.list()->items;
        if (at < 0) at += static_cast<std::int64_t>(items.size());
        return at >= 0 && at < static_cast<std::int64_t>(items.size())
                   ? items[static_cast<std::size_t>(at)]
                   : make_undefined(text("item ", at));
    }

    if (object.text()) {
        charge_bytes(4 * object.text()->size());
        const std::vector<std::size_t> starts = code_point_starts(object.text()->bytes());
        const auto length = static_cast<std::int64_t>(starts.size()) - 1;
        if (at < 0) at += length;
        if (at < 0 || at >= length) return make_undefined(text("character ", at));
        return make_text(object.text()->part(starts[static_cast<std::size_t>(at)],
                                             starts[static_cast<std::size_t>(at) + 1]));
    }

    return make_undefined("item");
}

}  // namespace moex::jinja
