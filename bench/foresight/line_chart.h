// Draws lines with error bars as an SVG picture.
#pragma once

#include <string>
#include <vector>

namespace moex::bench {

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
    std::size_t bar_every = 1;  // only every n-th point has an error bar
};
std::string svg_of(const LineChart& chart);

}  // namespace moex::bench
