// Which kernels stand under the PrivateUse1 dispatch key.
#pragma once

namespace torch_tpu {

// Puts the record kernel under every aten op that has no kernel of its own there. Once, when the library is loaded.
void register_record_kernels();

}  // namespace torch_tpu
