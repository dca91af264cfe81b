#include "distributions.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <string>

namespace torch_tpu {

void check_distribution(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  const std::string& name = schema.name();
  const auto is = [&](const char* op) { return name.rfind(op, 0) == 0; };
  const auto number = [&](const char* argument) {
    const auto index = schema.argumentIndexWithName(argument);
    const bool given = index && arguments[*index].isScalar();
    return given ? arguments[*index].toScalar().toDouble() : std::nan("");
  };
  // A parameter that is not there is NaN, and no comparison with it holds.
  if (is("aten::uniform")) {
    const double from = number("from"), to = number("to");
    TORCH_CHECK(!(from > to), "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  } else if (is("aten::normal")) {
    const double std = number("std");
    TORCH_CHECK(!(std < 0), "normal expects std >= 0.0, but found std ", std);
  } else if (is("aten::log_normal")) {
    const double std = number("std");
    TORCH_CHECK(!(std <= 0), "log_normal_ expects std > 0.0, but found std=", std);
  } else if (is("aten::exponential")) {
    const double lambda = number("lambd");
    TORCH_CHECK(!(lambda <= 0), "exponential_ expects lambda > 0.0, but found lambda=", lambda);
  } else if (is("aten::cauchy")) {
    const double sigma = number("sigma");
    TORCH_CHECK(!(sigma <= 0), "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
  } else if (is("aten::geometric")) {
    const double p = number("p");
    TORCH_CHECK(!(p <= 0 || p >= 1), "geometric_ expects p to be in (0, 1), but got p=", p);
  } else if (is("aten::bernoulli")) {
    const double p = number("p");
    TORCH_CHECK(!(p < 0 || p > 1), "bernoulli_ expects p to be in [0, 1], but got p=", p);
  } else if (is("aten::multinomial")) {
    const at::Tensor& weights = arguments[0].toTensor();
    const int64_t count = arguments[1].toInt();
    TORCH_CHECK(c10::isFloatingType(weights.scalar_type()),
                "multinomial only supports floating-point dtypes for input, got: ", weights.scalar_type());
    TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples");
    TORCH_CHECK(arguments[2].toBool() || weights.dim() == 0 || count <= weights.size(-1),
                "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  }
}

}  // namespace torch_tpu
