// Python's two ways to put values into a string: '%5.2f' % value and '{} {name}'.format(...).
#pragma once

#include "hub/model/jinja/renderer.h"

namespace moex::jinja {

// Of `format % value`: %s %r %d %i %u %x %X %o %e %E %f %F %g %G %c and %%, with a mapping's key,
// flags, width and precision. `value` is a tuple of values, a mapping, or the only value.
MarkedText format_percent(Renderer& renderer, const MarkedText& format, const Value& value);

// "{} {0} {name}": fields without conversions or formats.
MarkedText format_braces(const MarkedText& format, const CallArguments& arguments);

}  // namespace moex::jinja
