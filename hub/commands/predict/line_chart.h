// A picture of lines with error bars, as SVG: what `predict --out` draws.
#pragma once

#include <string>
#include <vector>

namespace moex {

struct ChartPoint {
    double x = 0, y = 0, deviation = 0;
};
struct ChartLine {
    std::string name;
    std::vector<ChartPoint> points;  // ascending x
};
struct LineChart {
    std::string title, x_label, y_label;
    std::vector<ChartLine> lines;
    double y_max = 1;           // from 0
    std::size_t bar_every = 1;  // points from one error bar to the next
};
std::string svg_of(const LineChart& chart);

}  // namespace moex
