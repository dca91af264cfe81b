// What makes two recorded ops the same program: op, tensor metadata and static arguments, never a value.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "value.h"

namespace torch_tpu {

// How a scalar travels in the int32 words of a program's scalar parameter.
enum class ScalarKind : uint8_t { kFloat32, kFloat64, kInt32, kInt64, kBool, kComplex64, kComplex128, kUint64 };

size_t scalar_words(ScalarKind kind);

// One argument of a signature, as the lowering sees it.
struct Argument {
  enum class Kind : uint8_t { kTensor, kScalar, kList, kDtype, kStatic };
  Kind kind = Kind::kStatic;
  ScalarKind scalar = ScalarKind::kFloat32;
  bool weak = false;                                   // a Python number, for type promotion
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of the scalar the rule sees, or the argument itself
  std::vector<Argument> items;                         // of a list
  c10::IValue value;                                   // of a static argument
};

struct OutputMeta {
  c10::ScalarType dtype;
  Dims sizes;
  Dims strides;
};

struct InputMeta {
  c10::ScalarType dtype;
  Dims sizes;
};

using KeyWords = c10::SmallVector<uint64_t, 48>;

struct Signature {
  uint32_t id = 0;
  uint64_t hash = 0;
  uint64_t family = 0;   // equal for signatures that differ in nothing but integers
  std::string op;        // of the functional op: "aten::add"
  std::string overload;  // "Tensor"
  std::vector<uint64_t> key;
  std::vector<Argument> arguments;
  std::vector<InputMeta> inputs;       // tensor arguments, in order
  std::vector<OutputMeta> outputs;     // results of the node, in order
  std::vector<size_t> list_sizes;      // how many results each list that the op returns has
  std::vector<c10::IValue> constants;  // what the op returns that is no tensor
  std::vector<OutputMeta> resized;     // out= arguments: the shape each must have
  uint32_t scalar_words = 0;
  c10::ScalarType default_dtype = c10::ScalarType::Float;                             // as it was when recorded
  at::Float32MatmulPrecision matmul_precision = at::Float32MatmulPrecision::HIGHEST;  // the same, of an op of products
  bool python = false;    // a call for the op's Python function, not to be recorded
  bool fallback = false;  // run it on the CPU
  std::string fallback_reason;
  std::string site;  // "file:line" of the user's code that first recorded it
};

uint64_t hash_words(const uint64_t* words, size_t n);

// The interned signatures. Guarded by the recorder's lock.
class SignatureTable {
 public:
  // nullptr if there is none of that key.
  const Signature* find(const KeyWords& key, uint64_t hash) const;
  const Signature& insert(std::unique_ptr<Signature> signature);
  const Signature& at(uint32_t id) const { return *signatures_[id]; }
  size_t size() const { return signatures_.size(); }

 private:
  void grow();
  std::vector<std::unique_ptr<Signature>> signatures_;
  std::vector<uint32_t> slots_;  // open addressing: id + 1, 0 is free
};

// "file:line" of the innermost Python frame outside torch and this package; empty where there is none. Takes the GIL.
std::string user_site();

}  // namespace torch_tpu
