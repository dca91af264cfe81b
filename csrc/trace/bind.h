// Where the core meets Python.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "program.h"

namespace torch_tpu {

// Calls torch_tpu.compiler.program.build under the GIL; throws std::exception with Python's traceback text.
std::shared_ptr<pjrt::Executable> build_program(const ProgramDescription& description);

// Calls torch_tpu.dynamo.recorded.pad under the GIL; nullptr also where that fails.
std::unique_ptr<const Padding> ask_padding(uint64_t family, const ProgramDescription& description,
                                           const std::vector<int32_t>& scalars, const ProgramDescription& first,
                                           double growth, int64_t minimum);

void bind_trace(pybind11::module_& m);

// Why the program cannot be lowered, from torch_tpu.compiler.program.why_not_lowered; empty if it can. Takes the GIL.
std::string why_not_lowered(const ProgramDescription& description);

}  // namespace torch_tpu
