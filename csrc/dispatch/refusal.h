// What is refused at the call, in PyTorch's words, although a program would only fail later or not at all.
#pragma once

#include "../trace/signature.h"
#include "op_entry.h"

namespace torch_tpu {

// How many zeros the CPU may be asked about: where its answer is likely to matter, and else, as many as cost nothing.
constexpr int64_t kLargeZeros = int64_t{1} << 22;
constexpr int64_t kSmallZeros = int64_t{1} << 12;

// Throws what the CPU's kernel says to zeros of these shapes. Returns where it says nothing, or where they would be
// more than `largest`.
void throw_as_on_cpu(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments, int64_t largest);

// What the CPU's kernel refuses is refused here too, but for what is wrong with zeros: a matrix of them has no inverse.
void refuse_as_on_cpu(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments, int64_t largest);

// Finds out at the call what would fail later. Kernels and rules are likely to refuse, or to part ways over, complex
// numbers, integers without any floating-point number beside them, and nothing at all.
void check_arguments(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments, Signature& s);

// Refuses in-place and out arguments of a dtype that the op's result cannot be cast to.
void check_targets(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments, const Signature& s);

// Throws PyTorch's error for a number that a tensor of this dtype cannot be filled with.
void check_fits(const c10::Scalar& number, c10::ScalarType dtype);

}  // namespace torch_tpu
