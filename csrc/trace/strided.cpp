#include "strided.h"

#include <algorithm>

namespace torch_tpu {
namespace {

// Dims that move: size > 1 and stride != 0, by falling stride (ties keep their order).
Dims moving_dims(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  Dims order;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && strides[d] != 0) order.push_back(static_cast<int64_t>(d));
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  return order;
}

}  // namespace

StridedPlan plan_strided(int64_t numel, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  StridedPlan plan;
  plan.order = moving_dims(sizes, strides);
  const size_t n = plan.order.size();
  int64_t outer = 0;  // the stride of the dim before, 0 for the first
  int64_t rest = offset;
  for (size_t i = 0; i < n; ++i) {
    const int64_t stride = strides[plan.order[i]];
    if (outer != 0 && outer % stride != 0) {
      plan.gather = true;
      return plan;
    }
    const int64_t radix = outer == 0 ? (numel + stride - 1) / stride : outer / stride;
    const int64_t start = rest / stride;
    const int64_t extent = sizes[plan.order[i]];
    rest %= stride;
    if (start + extent > radix) {
      plan.gather = true;
      return plan;
    }
    plan.radix.push_back(radix);
    plan.start.push_back(start);
    plan.extent.push_back(extent);
    outer = stride;
  }
  if (outer != 1) {  // what lies between the elements of the innermost moving dim
    plan.radix.push_back(outer == 0 ? numel : outer);
    plan.start.push_back(rest);
    plan.extent.push_back(1);
  }
  return plan;
}

bool same_layout(c10::IntArrayRef sizes_a, c10::IntArrayRef strides_a, c10::IntArrayRef sizes_b,
                 c10::IntArrayRef strides_b) {
  if (sizes_a != sizes_b) return false;
  for (size_t d = 0; d < sizes_a.size(); ++d) {
    if (sizes_a[d] != 1 && strides_a[d] != strides_b[d]) return false;
  }
  return true;
}

bool is_dense(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t numel = 1;
  for (int64_t s : sizes) numel *= s;
  if (numel <= 1) return true;
  Dims order = moving_dims(sizes, strides);
  int64_t expected = 1;
  for (size_t i = order.size(); i-- > 0;) {
    if (strides[order[i]] != expected) return false;
    expected *= sizes[order[i]];
  }
  return expected == numel;
}

}  // namespace torch_tpu
