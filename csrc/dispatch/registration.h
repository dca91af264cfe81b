// Which kernels stand under the PrivateUse1 dispatch keys.
#pragma once

namespace torch_tpu {

// Puts the record kernel under every aten op that has no kernel of its own there. Once, when the library is loaded.
void register_record_kernels();

// The same for sparse tensors: what the CPU has a sparse kernel for runs there. Once, too.
void register_sparse_kernels();

}  // namespace torch_tpu
