// flow: the minimum-cost flow of Hubara et al. 2021, on LEMON's network simplex.
//
//   source --row_keep--> row r --1, cost -|w|--> col c --col_keep--> sink      flow = full size
//
// Exact among full masks (tile.h), like `exact`, which it is the oracle of; much slower. Network
// simplex is reliable with integers only, so magnitudes are rounded to a multiple of
// 2^-52 of the largest in the tile: the kept magnitude is within (group^2) 2^-52 of that largest
// weight of the optimum. Which of several optima is returned is up to LEMON, and repeatable.
#include <lemon/network_simplex.h>
#include <lemon/smart_graph.h>

#include <memory>
#include <vector>

#include "weft/core/error.h"
#include "weft/mask/algorithms.h"

namespace weft {
namespace {

class FlowNetwork {
 public:
  using Graph = lemon::SmartDigraph;

  // One graph and one solver serve all tiles of a shape: only the costs change.
  explicit FlowNetwork(const Tile& tile)
      : rows_(tile.rows), cols_(tile.cols), keep_(tile.keep), capacity_(graph_), cost_(graph_) {
    const int rows = rows_, cols = cols_;
    graph_.reserveNode(rows + cols + 2);
    graph_.reserveArc(rows * cols + rows + cols);
    for (int i = 0; i < rows + cols + 2; ++i) graph_.addNode();
    source_ = graph_.nodeFromId(rows + cols);
    sink_ = graph_.nodeFromId(rows + cols + 1);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < cols; ++c) {
        cells_.push_back(add_arc(graph_.nodeFromId(r), graph_.nodeFromId(rows + c), 1));
      }
    }
    for (int r = 0; r < rows; ++r) add_arc(source_, graph_.nodeFromId(r), tile.row_keep());
    for (int c = 0; c < cols; ++c) add_arc(graph_.nodeFromId(rows + c), sink_, tile.col_keep());
    simplex_ = std::make_unique<Simplex>(graph_);
    simplex_->upperMap(capacity_);
  }

  bool fits(const Tile& tile) const {
    return tile.rows == rows_ && tile.cols == cols_ && tile.keep == keep_;
  }

  void solve(const Tile& tile, TileMask& kept) {
    const auto cells = static_cast<size_t>(rows_ * cols_);
    const double largest =
        *std::max_element(tile.magnitude.begin(), tile.magnitude.begin() + rows_ * cols_);
    int exponent = 0;
    std::frexp(largest, &exponent);
    for (size_t i = 0; i < cells; ++i) {
      cost_[cells_[i]] = -std::llround(std::ldexp(tile.magnitude[i], 52 - exponent));
    }
    simplex_->costMap(cost_).stSupply(source_, sink_, tile.full_size());
    WEFT_CHECK(simplex_->run() == Simplex::OPTIMAL, "flow: no full mask of a {} x {} tile", rows_,
               cols_);
    for (size_t i = 0; i < cells; ++i) {
      if (simplex_->flow(cells_[i]) != 0) {
        kept[i / static_cast<size_t>(cols_)] |= uint64_t{1} << (i % static_cast<size_t>(cols_));
      }
    }
  }

 private:
  using Simplex = lemon::NetworkSimplex<Graph, int, int64_t>;

  Graph::Arc add_arc(Graph::Node from, Graph::Node to, int capacity) {
    const Graph::Arc arc = graph_.addArc(from, to);
    capacity_[arc] = capacity;
    cost_[arc] = 0;
    return arc;
  }

  int rows_;
  int cols_;
  int keep_;
  Graph graph_;
  Graph::ArcMap<int> capacity_;
  Graph::ArcMap<int64_t> cost_;
  Graph::Node source_, sink_;
  std::vector<Graph::Arc> cells_;
  std::unique_ptr<Simplex> simplex_;
};

}  // namespace

void flow_tile(const Tile& tile, TileMask& kept) {
  // Building the graph costs as much as solving it, so each thread keeps its last one.
  thread_local std::unique_ptr<FlowNetwork> network;
  if (!network || !network->fits(tile)) network = std::make_unique<FlowNetwork>(tile);
  network->solve(tile, kept);
}

}  // namespace weft
