// Reading and writing a strided view of a dense value.
#pragma once

#include <c10/core/ScalarType.h>

#include "value.h"

namespace torch_tpu {

// How a view lies in a flat array of `numel` elements. The flat array, padded, is reshaped to `radix`; the view is the
// box [start, start + extent) in it, up to a permutation and broadcasts. Where no such box exists, `gather` is set and
// the elements are addressed one by one.
struct StridedPlan {
  bool gather = false;
  Dims radix;
  Dims start;
  Dims extent;
  Dims order;  // the view's dims of size > 1 and stride != 0, by falling stride
};

StridedPlan plan_strided(int64_t numel, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);

// True if two tensors of these sizes and strides address the same elements in the same order.
bool same_layout(c10::IntArrayRef sizes_a, c10::IntArrayRef strides_a, c10::IntArrayRef sizes_b,
                 c10::IntArrayRef strides_b);

// True if sizes and strides cover numel(sizes) consecutive elements, each once.
bool is_dense(c10::IntArrayRef sizes, c10::IntArrayRef strides);

}  // namespace torch_tpu
