#include "signature.h"

#include <Python.h>
#include <frameobject.h>
#include <pybind11/pybind11.h>

#include <cstring>
#include <sstream>

namespace torch_tpu {

namespace py = pybind11;

size_t scalar_words(ScalarKind kind) {
  switch (kind) {
    case ScalarKind::kFloat32:
    case ScalarKind::kInt32:
    case ScalarKind::kBool:
      return 1;
    case ScalarKind::kFloat64:
    case ScalarKind::kInt64:
    case ScalarKind::kUint64:
    case ScalarKind::kComplex64:
      return 2;
    case ScalarKind::kComplex128:
      return 4;
  }
  return 0;
}

uint64_t hash_words(const uint64_t* words, size_t n) {
  uint64_t h = 0x9E3779B97F4A7C15ull ^ n;
  for (size_t i = 0; i < n; ++i) {
    const unsigned __int128 product = static_cast<unsigned __int128>(h ^ words[i]) * 0xD6E8FEB86659FD93ull;
    h = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  return h;
}

namespace {

using FamilyWords = std::vector<uint64_t>;

void append_text(FamilyWords& words, const std::string& text) { words.push_back(std::hash<std::string>()(text)); }

// Of the integers in a static argument it counts how many there are.
void append_family(FamilyWords& words, const c10::IValue& value) {
  words.push_back(std::hash<std::string>()(value.tagKind()));
  if (value.isInt()) return;
  if (value.isIntList()) {
    words.push_back(value.toIntVector().size());
    return;
  }
  std::ostringstream text;
  text << value;
  append_text(words, text.str());
}

void append_family(FamilyWords& words, const Argument& argument) {
  for (uint64_t word : {static_cast<uint64_t>(argument.kind), static_cast<uint64_t>(argument.scalar),
                        static_cast<uint64_t>(argument.weak), static_cast<uint64_t>(argument.dtype),
                        static_cast<uint64_t>(argument.items.size())}) {
    words.push_back(word);
  }
  for (const Argument& item : argument.items) append_family(words, item);
  if (argument.kind == Argument::Kind::kStatic) append_family(words, argument.value);
}

uint64_t family_of(const Signature& s) {
  FamilyWords words{static_cast<uint64_t>(s.default_dtype), static_cast<uint64_t>(s.matmul_precision)};
  append_text(words, s.op);
  append_text(words, s.overload);
  for (const Argument& argument : s.arguments) append_family(words, argument);
  for (const InputMeta& input : s.inputs) {
    words.push_back(static_cast<uint64_t>(input.dtype));
    words.push_back(input.sizes.size());
  }
  for (const OutputMeta& output : s.outputs) {
    words.push_back(static_cast<uint64_t>(output.dtype));
    words.push_back(output.sizes.size());
  }
  return hash_words(words.data(), words.size());
}

}  // namespace

const Signature* SignatureTable::find(const KeyWords& key, uint64_t hash) const {
  if (slots_.empty()) return nullptr;
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask; slots_[i] != 0; i = (i + 1) & mask) {
    const Signature& s = *signatures_[slots_[i] - 1];
    if (s.hash == hash && s.key.size() == key.size() &&
        std::memcmp(s.key.data(), key.data(), key.size() * sizeof(uint64_t)) == 0) {
      return &s;
    }
  }
  return nullptr;
}

const Signature& SignatureTable::insert(std::unique_ptr<Signature> signature) {
  if ((signatures_.size() + 1) * 2 > slots_.size()) grow();
  signature->id = static_cast<uint32_t>(signatures_.size());
  signature->family = family_of(*signature);
  signatures_.push_back(std::move(signature));
  const Signature& s = *signatures_.back();
  const size_t mask = slots_.size() - 1;
  size_t i = s.hash & mask;
  while (slots_[i] != 0) i = (i + 1) & mask;
  slots_[i] = s.id + 1;
  return s;
}

void SignatureTable::grow() {
  std::vector<uint32_t> slots(slots_.empty() ? 1024 : slots_.size() * 2);
  const size_t mask = slots.size() - 1;
  for (const auto& s : signatures_) {
    size_t i = s->hash & mask;
    while (slots[i] != 0) i = (i + 1) & mask;
    slots[i] = s->id + 1;
  }
  slots_.swap(slots);
}

std::string user_site() {
  if (!Py_IsInitialized()) return {};
  py::gil_scoped_acquire gil;
  static const auto* skipped = new std::vector<std::string>([] {
    std::vector<std::string> folders;
    for (const char* name : {"torch", "torch_tpu"}) {
      if (auto module = py::reinterpret_borrow<py::object>(PyImport_GetModule(py::str(name).ptr()))) {
        folders.push_back(py::str(py::module_::import("os.path").attr("dirname")(module.attr("__file__"))));
      }
    }
    return folders;
  }());
  auto frame =
      py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame && !frame.is_none()) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    const std::string file = py::str(code.attr("co_filename"));
    bool internal = file.rfind("<", 0) == 0;
    for (const std::string& folder : *skipped) internal |= file.rfind(folder + "/", 0) == 0;
    if (!internal) return file + ":" + std::to_string(PyFrame_GetLineNumber(raw));
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return {};
}

}  // namespace torch_tpu
