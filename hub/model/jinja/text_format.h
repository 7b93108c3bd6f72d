// The two forms of Python's string formatting: '%5.2f' % value and '{} {name}'.format(...).
#pragma once

#include "hub/model/jinja/renderer.h"

namespace moex::jinja {

// Evaluates `format % value` with %s %r %d %i %u %x %X %o %e %E %f %F %g %G %c and %%. Each
// conversion may have the key of a mapping, flags, width and precision. `value` is a tuple of
// values, a mapping, or a single value.
MarkedText format_percent(Renderer& renderer, const MarkedText& format, const Value& value);

// Evaluates format.format(...) with fields such as {}, {0} and {name}. The fields may not have
// conversions or format specifications.
MarkedText format_braces(const MarkedText& format, const CallArguments& arguments);

}  // namespace moex::jinja
