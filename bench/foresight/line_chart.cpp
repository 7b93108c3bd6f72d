#include "bench/foresight/line_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "protocol/result.h"

namespace moex::bench {
namespace {

constexpr double left = 56, top = 36, plot_width = 520, plot_height = 320, foot = 44;
constexpr double key_width = 220, key_row = 18;
// Colours that most people can distinguish on white (after Okabe and Ito); further lines use the
// same colours with dashes.
constexpr std::array<const char*, 8> colors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                               "#e69f00", "#56b4e9", "#000000", "#8c6d31"};
constexpr std::array<const char*, 3> dashes = {"", "6 3", "2 3"};

std::string number(double value) {
    char out[32];
    std::snprintf(out, sizeof out, "%.1f", value);
    return out;
}

std::string escaped(const std::string& content) {
    std::string out;
    for (const char c : content) {
        if (c == '&')
            out += "&amp;";
        else if (c == '<')
            out += "&lt;";
        else
            out += c;
    }
    return out;
}

std::string label(double x, double y, const char* anchor, const std::string& content) {
    return text("<text x=\"", number(x), "\" y=\"", number(y), "\" text-anchor=\"", anchor, "\">",
                escaped(content), "</text>\n");
}

// Maps the values of a chart to coordinates in the picture.
struct Scale {
    double x_min = 0, x_max = 1, y_max = 1;
    double x(double value) const {
        return left + (x_max > x_min ? (value - x_min) / (x_max - x_min) : 0.5) * plot_width;
    }
    double y(double value) const {
        return top + (1 - std::clamp(value / y_max, 0.0, 1.0)) * plot_height;
    }
};

Scale scale_of(const LineChart& chart) {
    Scale scale{.y_max = chart.y_max};
    bool is_first = true;
    for (const ChartLine& line : chart.lines)
        for (const ChartPoint& point : line.points) {
            scale.x_min = is_first ? point.x : std::min(scale.x_min, point.x);
            scale.x_max = is_first ? point.x : std::max(scale.x_max, point.x);
            is_first = false;
        }
    return scale;
}

std::string axes(const LineChart& chart, const Scale& scale) {
    std::string out = label(left, 20, "start", chart.title);
    constexpr int y_steps = 5;
    for (int i = 0; i <= y_steps; ++i) {
        const double value = chart.y_max * i / y_steps, y = scale.y(value);
        out += text("<line x1=\"", number(left), "\" x2=\"", number(left + plot_width), "\" y1=\"",
                    number(y), "\" y2=\"", number(y), "\" stroke=\"#ddd\"/>\n",
                    label(left - 6, y + 4, "end", number(value)));
    }

    constexpr int x_steps_max = 8;
    const double step = std::max(1.0, std::ceil((scale.x_max - scale.x_min) / x_steps_max));
    for (double value = scale.x_min; value <= scale.x_max; value += step) {
        char shown[32];
        std::snprintf(shown, sizeof shown, "%.0f", value);
        out += label(scale.x(value), top + plot_height + 16, "middle", shown);
    }
    out += label(left + plot_width / 2, top + plot_height + 36, "middle", chart.x_label);
    out += label(left - 6, top - 6, "end", chart.y_label);
    return out;
}

std::string drawn(const ChartLine& line, const Scale& scale, std::size_t index,
                  std::size_t bar_every) {
    const char* color = colors[index % colors.size()];
    std::string points, bars;
    for (std::size_t i = 0; i < line.points.size(); ++i) {
        const ChartPoint& point = line.points[i];
        const std::string x = number(scale.x(point.x));
        points += text(x, ",", number(scale.y(point.y)), " ");
        if (i % bar_every == 0 && point.deviation > 0)
            bars += text("<line x1=\"", x, "\" x2=\"", x, "\" y1=\"",
                         number(scale.y(point.y - point.deviation)), "\" y2=\"",
                         number(scale.y(point.y + point.deviation)), "\" stroke=\"", color,
                         "\" stroke-opacity=\"0.5\"/>\n");
    }

    const std::string stroke = text("stroke=\"", color,
                                    "\" stroke-width=\"1.5\" stroke-dasharray=\"",
                                    dashes[index / colors.size() % dashes.size()], "\"");
    const double key_x = left + plot_width + 16,
                 key_y = top + 8 + key_row * static_cast<double>(index);
    return text("<polyline fill=\"none\" ", stroke, " points=\"", points, "\"/>\n", bars,
                "<line x1=\"", number(key_x), "\" x2=\"", number(key_x + 24), "\" y1=\"",
                number(key_y), "\" y2=\"", number(key_y), "\" ", stroke, "/>\n",
                label(key_x + 30, key_y + 4, "start", line.name));
}

}  // namespace

std::string svg_of(const LineChart& chart) {
    const Scale scale = scale_of(chart);
    const double width = left + plot_width + key_width,
                 height = std::max(top + plot_height + foot,
                                   top + key_row * static_cast<double>(chart.lines.size() + 1));

    std::string out = text(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", number(width), "\" height=\"",
        number(height), "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"",
        number(width), "\" height=\"", number(height), "\" fill=\"white\"/>\n", axes(chart, scale));
    for (std::size_t i = 0; i < chart.lines.size(); ++i)
        out += drawn(chart.lines[i], scale, i, std::max<std::size_t>(chart.bar_every, 1));
    return out + "</svg>\n";
}

}  // namespace moex::bench
