"""The builder that lowering rules write StableHLO with.

A rule sees `Value`s: typed, shaped, with operators that promote and broadcast as torch does. Builder methods carry
StableHLO's names. Elementwise methods promote and broadcast their operands too; structural ones take what they are
given. MLIR is imported when the first Builder is made, so that families stay cheap to import.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torch_tpu.compiler import flags

from . import dtypes
from .value import Operand, TensorSpec, Value

Number = bool | int | float | complex
Dims = Sequence[int]
Pairs = Sequence[tuple[int, int]]

# torch.get_float32_matmul_precision() in StableHLO's words.
_PRECISION = {"highest": "HIGHEST", "high": "HIGH", "medium": "DEFAULT"}


Body = Callable[..., Value | Sequence[Value]]


def _unary(dialect: str, name: str, result: Callable[[torch.dtype], torch.dtype] | None = None) -> UnaryMethod:
    def method(self: Builder, x: Value) -> Value:
        dtype = result(x.dtype) if result else x.dtype
        return Value(self, getattr(getattr(self, dialect), name)(x.ir), x.shape, dtype, x.weak)

    method.__doc__ = f"{'chlo' if dialect == 'chlo' else 'stablehlo'}.{name}"
    return method


def _binary(dialect: str, name: str) -> BinaryMethod:
    def method(self: Builder, x: Operand, y: Operand) -> Value:
        x, y = self.operands(x, y)
        out = getattr(getattr(self, dialect), name)(x.ir, y.ir)
        return Value(self, out, x.shape, x.dtype, x.weak and y.weak)

    method.__doc__ = f"{'chlo' if dialect == 'chlo' else 'stablehlo'}.{name}, operands promoted and broadcast"
    return method


def _to_bool(_: torch.dtype) -> torch.dtype:
    return torch.bool


class Builder:
    """Emits StableHLO at the current insertion point.

    outputs: what PyTorch's meta function says of the op being lowered (its flat tensor outputs).
    platform: "cpu" or "tpu", for the few rules that differ.
    """

    def __init__(
        self,
        outputs: Sequence[TensorSpec | None] = (),
        platform: str = "cpu",
        default_dtype: torch.dtype | None = None,
        matmul_precision: str | None = None,
    ) -> None:
        from . import mlir

        self.outputs = list(outputs)
        self.platform = platform
        self.default_dtype = default_dtype or torch.get_default_dtype()
        self.matmul_precision: str | None = matmul_precision or flags.matmul_precision(
            torch.get_float32_matmul_precision()
        )
        self.m: Any = mlir
        self.ir: Any = mlir.ir
        self.hlo: Any = mlir.hlo
        self.chlo: Any = mlir.chlo
        self.context = mlir.context()
        self.true_sizes: Sequence[Operand] = ()  # of the op being lowered, where its shape is padded
        self._inlined = 0

    # ---- programs

    @contextlib.contextmanager
    def program(
        self, inputs: Sequence[TensorSpec], aliases: Mapping[int, int] | None = None, donors: Collection[int] = ()
    ) -> Iterator[list[Value]]:
        """Open a module with one public function and yield its parameters; `finish` closes it as `self.module`.

        aliases: parameter index -> result index whose buffer may be reused (tf.aliasing_output).
        donors: parameters whose buffers any result may take (jax.buffer_donor).
        """
        ir = self.ir
        types = [self._type(s.shape, s.dtype) for s in inputs]
        with self.context.ctx, self.context.loc:
            self.module = ir.Module.create()
            with ir.InsertionPoint(self.module.body):
                self._main = self.m.func.FuncOp("main", (types, []))
            block = self._main.add_entry_block()
            i32 = ir.IntegerType.get_signless(32)
            attrs: list[dict[str, Any]] = [{} for _ in types]
            for parameter, result in (aliases or {}).items():
                attrs[parameter] = {"tf.aliasing_output": ir.IntegerAttr.get(i32, result)}
            for parameter in donors:
                attrs[parameter] = {"jax.buffer_donor": ir.BoolAttr.get(True)}
            self._main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attrs])
            with ir.InsertionPoint(block):
                yield [Value(self, a, s.shape, s.dtype) for a, s in zip(block.arguments, inputs)]

    def finish(self, results: Sequence[Value]) -> None:
        """Return these values from the program's function."""
        ir = self.ir
        self.m.func.return_([v.ir for v in results])
        inputs = self._main.type.inputs
        kind = ir.FunctionType.get(inputs, [v.ir.type for v in results])
        self._main.attributes["function_type"] = ir.TypeAttr.get(kind)
        self._main.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get({})] * len(results))

    def call_module(self, text: str, args: Sequence[Value]) -> list[Value]:
        """Copy the functions of a StableHLO module into this one and call its `main`."""
        ir = self.ir
        module = ir.Module.parse(text)
        symbols = {op.attributes["sym_name"].value: op for op in module.body.operations}
        prefix = f"inlined{self._inlined}_"
        self._inlined += 1
        for name, op in symbols.items():
            ir.SymbolTable.replace_all_symbol_uses(name, prefix + name, module.operation)
            op.attributes["sym_name"] = ir.StringAttr.get(prefix + name)
            op.attributes["sym_visibility"] = ir.StringAttr.get("private")
        for op in symbols.values():
            op.operation.detach_from_parent()
            self.module.body.append(op)
        call = self.m.func.CallOp(symbols["main"], [a.ir for a in args])
        return [Value(self, r, tuple(r.type.shape), self._dtype(r.type)) for r in call.results]

    def _dtype(self, type_: Any) -> torch.dtype:
        return next(d for d, element in self.context.elements.items() if element == type_.element_type)

    # ---- types, constants

    def _type(self, shape: Dims, dtype: torch.dtype) -> Any:
        return self.context.tensor(tuple(shape), dtype)

    def _attr(self, value: Number, dtype: torch.dtype) -> Any:
        element = self.context.elements[dtype]
        if dtype.is_floating_point:
            return self.ir.FloatAttr.get(element, float(value.real))
        if dtype == torch.bool:
            return self.ir.IntegerAttr.get(element, int(bool(value)))
        wrapped = int(value.real)
        bits = dtype.itemsize * 8
        wrapped &= (1 << bits) - 1
        return self.ir.IntegerAttr.get(element, wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)

    def full(self, shape: Dims, value: Operand, dtype: torch.dtype) -> Value:
        """A tensor filled with a Python number or with a 0-d value."""
        shape = tuple(shape)
        if isinstance(value, Value):
            return self.broadcast_to(self.convert(value, dtype), shape)
        type_ = self._type(shape, dtype)
        if dtype.is_complex:
            real = dtypes.real(dtype)
            return self.complex(self.full(shape, value.real, real), self.full(shape, value.imag, real))
        splat = self.ir.DenseElementsAttr.get_splat(type_, self._attr(value, dtype))
        return Value(self, self.hlo.constant(splat), shape, dtype)

    def scalar(self, x: Operand, dtype: torch.dtype) -> Value:
        """A 0-d value of this dtype, whether `x` came as a Python number or as a runtime scalar.

        It is weak no more: beside a Python number, float64 would become the default dtype.
        """
        if isinstance(x, Value):
            return Value(self, self.convert(x, dtype).ir, x.shape, dtype)
        return self.full((), x, dtype)

    def number(self, x: Number) -> Value:
        """A Python number as a weak 0-d value."""
        dtype = dtypes.of_number(x)
        return Value(self, self.full((), x, dtype).ir, (), dtype, weak=True)

    def constant(self, data: Any, dtype: torch.dtype) -> Value:
        """A constant from nested lists or a numpy array."""
        tensor = torch.as_tensor(data, dtype=dtype).contiguous()
        shape = tuple(tensor.shape)
        if tensor.numel() == 0:
            return self.full(shape, 0, dtype)
        if dtype.is_floating_point and dtype.itemsize < 4:
            array = tensor.view(torch.int16 if dtype.itemsize == 2 else torch.int8).numpy()
        else:
            array = tensor.numpy()
        attr = self.ir.DenseElementsAttr.get(array, type=self.context.elements[dtype], shape=list(shape))
        return Value(self, self.hlo.constant(attr), shape, dtype)

    def iota(self, shape: Dims, dim: int, dtype: torch.dtype) -> Value:
        """Each element is its index along `dim`."""
        return Value(self, self.hlo.iota(self._type(shape, dtype), dim), tuple(shape), dtype)

    # ---- promotion and broadcasting

    def promote(self, *xs: Operand | None) -> torch.dtype:
        """torch.result_type: dimensioned tensors before 0-d ones before Python numbers."""
        dims: list[torch.dtype] = []
        zeros: list[torch.dtype] = []
        numbers: list[torch.dtype] = []
        for x in xs:
            if isinstance(x, Value):
                (numbers if x.weak else dims if x.shape else zeros).append(x.dtype)
            elif x is not None:
                numbers.append(dtypes.of_number(x))
        return dtypes.result_type(dims, zeros, numbers, self.default_dtype)

    def operands(self, *xs: Operand) -> list[Value]:
        """The operands at their promoted dtype and common shape."""
        first = xs[0]
        if isinstance(first, Value) and all(
            isinstance(x, Value) and x.dtype == first.dtype and x.shape == first.shape for x in xs
        ):
            return list(xs)  # type: ignore[arg-type]
        dtype = self.promote(*xs)
        shape = self.broadcast_shape(*(x.shape for x in xs if isinstance(x, Value)))
        return [self._operand(x, shape, dtype) for x in xs]

    def _operand(self, x: Operand, shape: tuple[int, ...], dtype: torch.dtype) -> Value:
        if isinstance(x, Value):
            return self.broadcast_to(self.convert(x, dtype), shape)
        return self.full(shape, x, dtype)

    @staticmethod
    def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
        """The common shape, as torch.broadcast_shapes (but cheap)."""
        result: list[int] = []
        for shape in shapes:
            result = [1] * (len(shape) - len(result)) + result
            for i in range(1, len(shape) + 1):
                if shape[-i] != 1:
                    if result[-i] not in (1, shape[-i]):
                        raise ValueError(f"shapes do not broadcast: {shapes}")
                    result[-i] = shape[-i]
        return tuple(result)

    def broadcast_to(self, x: Value, shape: Dims) -> Value:
        """Broadcast aligned at the last dim, as torch.broadcast_to."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        offset = len(shape) - len(x.shape)
        return self.broadcast_in_dim(x, shape, range(offset, len(shape)))

    def broadcast(self, *xs: Value) -> list[Value]:
        """Each at the common shape; dtypes stay."""
        shape = self.broadcast_shape(*(x.shape for x in xs))
        return [self.broadcast_to(x, shape) for x in xs]

    @staticmethod
    def opmath(dtype: torch.dtype) -> torch.dtype:
        """The dtype PyTorch computes this one in."""
        return dtypes.opmath(dtype)

    # ---- elementwise

    abs = _unary("hlo", "abs", dtypes.real)
    acos = _unary("chlo", "acos")
    acosh = _unary("chlo", "acosh")
    asin = _unary("chlo", "asin")
    asinh = _unary("chlo", "asinh")
    atan = _unary("chlo", "atan")
    atanh = _unary("chlo", "atanh")
    bessel_i1e = _unary("chlo", "bessel_i1e")
    cbrt = _unary("hlo", "cbrt")
    ceil = _unary("hlo", "ceil")
    cosh = _unary("chlo", "cosh")
    cosine = _unary("hlo", "cosine")
    count_leading_zeros = _unary("hlo", "count_leading_zeros")
    digamma = _unary("chlo", "digamma")
    erf = _unary("chlo", "erf")
    erf_inv = _unary("chlo", "erf_inv")
    erfc = _unary("chlo", "erfc")
    exponential = _unary("hlo", "exponential")
    exponential_minus_one = _unary("hlo", "exponential_minus_one")
    floor = _unary("hlo", "floor")
    imag = _unary("hlo", "imag", dtypes.real)
    is_finite = _unary("hlo", "is_finite", _to_bool)
    is_inf = _unary("chlo", "is_inf", _to_bool)
    is_neg_inf = _unary("chlo", "is_neg_inf", _to_bool)
    is_pos_inf = _unary("chlo", "is_pos_inf", _to_bool)
    lgamma = _unary("chlo", "lgamma")
    log = _unary("hlo", "log")
    log_plus_one = _unary("hlo", "log_plus_one")
    logistic = _unary("hlo", "logistic")
    negate = _unary("hlo", "negate")
    not_ = _unary("hlo", "not_")
    popcnt = _unary("hlo", "popcnt")
    real = _unary("hlo", "real", dtypes.real)
    round_nearest_afz = _unary("hlo", "round_nearest_afz")
    round_nearest_even = _unary("hlo", "round_nearest_even")
    rsqrt = _unary("hlo", "rsqrt")
    sign = _unary("hlo", "sign")
    sine = _unary("hlo", "sine")
    sinh = _unary("chlo", "sinh")
    sqrt = _unary("hlo", "sqrt")
    tan = _unary("hlo", "tan")
    tanh = _unary("hlo", "tanh")

    add = _binary("hlo", "add")
    and_ = _binary("hlo", "and_")
    atan2 = _binary("hlo", "atan2")
    divide = _binary("hlo", "divide")
    maximum = _binary("hlo", "maximum")
    minimum = _binary("hlo", "minimum")
    multiply = _binary("hlo", "multiply")
    next_after = _binary("chlo", "next_after")
    or_ = _binary("hlo", "or_")
    polygamma = _binary("chlo", "polygamma")
    power = _binary("hlo", "power")
    remainder = _binary("hlo", "remainder")
    shift_left = _binary("hlo", "shift_left")
    shift_right_arithmetic = _binary("hlo", "shift_right_arithmetic")
    shift_right_logical = _binary("hlo", "shift_right_logical")
    xor = _binary("hlo", "xor")
    zeta = _binary("chlo", "zeta")

    def subtract(self, x: Operand, y: Operand) -> Value:
        """stablehlo.subtract, operands promoted and broadcast"""
        x, y = self.operands(x, y)
        return Value(self, self.hlo.subtract(x.ir, y.ir), x.shape, x.dtype, x.weak and y.weak)

    def true_divide(self, x: Operand, y: Operand) -> Value:
        """Division that takes integers to the default float dtype."""
        dtype = self.promote(x, y)
        if dtypes.is_integral(dtype):
            dtype = self.default_dtype
        shape = self.broadcast_shape(*(v.shape for v in (x, y) if isinstance(v, Value)))
        x, y = self._operand(x, shape, dtype), self._operand(y, shape, dtype)
        return self.divide(x, y)

    def compare(self, x: Operand, direction: str, y: Operand, *, total_order: bool = False) -> Value:
        """stablehlo.compare: direction is EQ, NE, LT, LE, GT or GE."""
        x, y = self.operands(x, y)
        attr = self.hlo.ComparisonDirectionAttr.get(direction)
        if x.is_float or x.is_complex:
            kind = "TOTALORDER" if total_order and x.is_float else "FLOAT"
        else:  # without its type, XLA folds a comparison of signed constants as one of unsigned ones
            kind = "SIGNED" if x.dtype.is_signed else "UNSIGNED"
        type_ = self.hlo.ComparisonTypeAttr.get(kind)
        return Value(self, self.hlo.compare(x.ir, y.ir, attr, compare_type=type_), x.shape, torch.bool)

    def select(self, pred: Value, x: Operand, y: Operand) -> Value:
        """x where pred, else y; all three broadcast."""
        dtype = self.promote(x, y)
        shape = self.broadcast_shape(pred.shape, *(v.shape for v in (x, y) if isinstance(v, Value)))
        x, y = self._operand(x, shape, dtype), self._operand(y, shape, dtype)
        pred = self.broadcast_to(pred, shape)
        return Value(self, self.hlo.select(pred.ir, x.ir, y.ir), shape, dtype)

    def convert(self, x: Value, dtype: torch.dtype) -> Value:
        """Cast with PyTorch's meaning: to bool is `!= 0`, to real drops the imaginary part."""
        if x.dtype == dtype:
            return x
        if dtype == torch.bool:
            return self.compare(x, "NE", 0)
        if x.dtype.is_complex and not dtype.is_complex:
            return self.convert(self.real(x), dtype)
        if x.is_float and dtypes.is_int(dtype) and (dtype.itemsize < 4 or dtype == torch.uint32):
            # As C++ on every CPU in use: out of range wraps, where StableHLO would saturate.
            x = self.convert(x, torch.int64 if dtype == torch.uint32 else torch.int32)
        if dtype == torch.float8_e4m3fn:  # it has no infinity: what is too large becomes the largest
            wide = x if x.is_float and x.dtype.itemsize > 1 else self.convert(x, torch.float32)
            largest = torch.finfo(dtype).max
            x = self.clamp(wide, -largest, largest)
        return Value(self, self.hlo.convert(self._type(x.shape, dtype), x.ir), x.shape, dtype, x.weak)

    def bitcast_convert(self, x: Value, dtype: torch.dtype) -> Value:
        """Reinterpret the bits; a narrower element adds a last dim, a wider one consumes it."""
        shape = x.shape
        if dtype.itemsize < x.dtype.itemsize:
            shape = (*shape, x.dtype.itemsize // dtype.itemsize)
        elif dtype.itemsize > x.dtype.itemsize:
            shape = shape[:-1]
        return Value(self, self.hlo.bitcast_convert(self._type(shape, dtype), x.ir), shape, dtype)

    def reduce_precision(self, x: Value, exponent_bits: int, mantissa_bits: int) -> Value:
        return Value(self, self.hlo.reduce_precision(x.ir, exponent_bits, mantissa_bits), x.shape, x.dtype)

    def round_to(self, x: Value, dtype: torch.dtype) -> Value:
        """Round to what a narrower float dtype can hold, in x's own dtype; XLA may elide a pair of converts."""
        if not dtype.is_floating_point or dtype.itemsize >= x.dtype.itemsize:
            return x
        info = torch.finfo(dtype)
        mantissa = round(-math.log2(info.eps))
        return self.reduce_precision(x, dtype.itemsize * 8 - 1 - mantissa, mantissa)

    def complex(self, re: Value, im: Value) -> Value:
        """A complex value from its parts."""
        re, im = self.operands(re, im)
        return Value(self, self.hlo.complex(re.ir, im.ir), re.shape, dtypes.complex_of(re.dtype))

    def truncate(self, x: Value) -> Value:
        """Round toward zero."""
        return self.select(x < 0, self.ceil(x), self.floor(x))

    def sign_bit(self, x: Value) -> Value:
        """Whether the sign bit is set, of a NaN or a zero too."""
        if x.is_float:
            integer = {2: torch.int16, 4: torch.int32, 8: torch.int64, 1: torch.int8}[x.dtype.itemsize]
            return self.bitcast_convert(x, integer) < 0
        return x < 0 if x.dtype.is_signed else self.full(x.shape, False, torch.bool)

    def is_nan(self, x: Value) -> Value:
        return self.compare(x, "NE", x)

    def clamp(self, x: Value, low: Operand, high: Operand) -> Value:
        """min(max(x, low), high), NaN wins."""
        return self.minimum(self.maximum(x, low), high)

    # ---- shape

    def reshape(self, x: Value, shape: Dims) -> Value:
        shape = tuple(shape)
        if x.shape == shape:
            return x
        return Value(self, self.hlo.reshape(self._type(shape, x.dtype), x.ir), shape, x.dtype, x.weak)

    def broadcast_in_dim(self, x: Value, shape: Dims, dims: Sequence[int]) -> Value:
        """Place x's dims at `dims` of `shape`."""
        shape = tuple(shape)
        out = self.hlo.broadcast_in_dim(self._type(shape, x.dtype), x.ir, list(dims))
        return Value(self, out, shape, x.dtype, x.weak)

    def transpose(self, x: Value, perm: Dims) -> Value:
        if list(perm) == list(range(x.ndim)):
            return x
        return Value(self, self.hlo.transpose(x.ir, list(perm)), tuple(x.shape[p] for p in perm), x.dtype)

    def swap_dims(self, x: Value, d0: int, d1: int) -> Value:
        perm = list(range(x.ndim))
        perm[d0], perm[d1] = perm[d1], perm[d0]
        return self.transpose(x, perm)

    def unsqueeze(self, x: Value, dim: int) -> Value:
        """A size-one dim at `dim` (negative counts from the new end)."""
        dim = dim + x.ndim + 1 if dim < 0 else dim
        return self.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))

    def reverse(self, x: Value, dims: Dims) -> Value:
        return Value(self, self.hlo.reverse(x.ir, list(dims)), x.shape, x.dtype)

    def slice(self, x: Value, starts: Dims, limits: Dims, strides: Dims | None = None) -> Value:
        strides = list(strides) if strides is not None else [1] * x.ndim
        shape = tuple(max(0, -(-(e - s) // t)) for s, e, t in zip(starts, limits, strides))
        if shape == x.shape:
            return x
        return Value(self, self.hlo.slice(x.ir, list(starts), list(limits), strides), shape, x.dtype)

    def slice_dim(self, x: Value, dim: int, start: int, limit: int, stride: int = 1) -> Value:
        """Slice one dim, the others whole."""
        dim %= x.ndim
        starts, limits, strides = [0] * x.ndim, list(x.shape), [1] * x.ndim
        starts[dim], limits[dim], strides[dim] = start, limit, stride
        return self.slice(x, starts, limits, strides)

    def dynamic_slice(self, x: Value, starts: Sequence[Value], sizes: Dims) -> Value:
        out = self.hlo.dynamic_slice(x.ir, [s.ir for s in starts], list(sizes))
        return Value(self, out, tuple(sizes), x.dtype)

    def dynamic_update_slice(self, x: Value, update: Value, starts: Sequence[Value]) -> Value:
        return Value(self, self.hlo.dynamic_update_slice(x.ir, update.ir, [s.ir for s in starts]), x.shape, x.dtype)

    def concatenate(self, xs: Sequence[Value], dim: int) -> Value:
        """Join along `dim`; dtypes must agree."""
        if len(xs) == 1:
            return xs[0]
        dim %= xs[0].ndim
        shape = list(xs[0].shape)
        shape[dim] = sum(x.shape[dim] for x in xs)
        return Value(self, self.hlo.concatenate([x.ir for x in xs], dim), tuple(shape), xs[0].dtype)

    def pad(self, x: Value, value: Operand, low: Dims, high: Dims, interior: Dims | None = None) -> Value:
        """Edge (negative crops) and interior padding with a number or 0-d value."""
        interior = list(interior) if interior is not None else [0] * x.ndim
        shape = tuple(n + lo + hi + max(0, n - 1) * i for n, lo, hi, i in zip(x.shape, low, high, interior))
        fill = self.scalar(value, x.dtype)
        return Value(self, self.hlo.pad(x.ir, fill.ir, list(low), list(high), interior), shape, x.dtype)

    def optimization_barrier(self, *xs: Value) -> list[Value]:
        """Keep XLA from moving or merging computation across this point."""
        out = self.hlo.OptimizationBarrierOp([x.ir for x in xs]).results
        return [Value(self, o, x.shape, x.dtype) for o, x in zip(out, xs)]

    def get_dimension_size(self, x: Value, dim: int) -> Value:
        return Value(self, self.hlo.get_dimension_size(x.ir, dim), (), torch.int32)

    def set_dimension_size(self, x: Value, size: Value, dim: int) -> Value:
        """Tell XLA that only the first `size` (int32) of a dim are elements. Its type keeps the padded size, which XLA
        accepts: it finds out by itself what has dynamic sizes, for several dims at once, where MLIR's types could not.
        """
        op = self.hlo.SetDimensionSizeOp(x.ir, size.ir, dim, results=[self._type(x.shape, x.dtype)])
        return Value(self, op.result, x.shape, x.dtype, x.weak)

    # ---- regions

    def _region(self, region: Any, args: Sequence[tuple[Dims, torch.dtype]], body: Body) -> list[Value]:
        block = region.blocks.append(*[self._type(s, d) for s, d in args])
        with self.ir.InsertionPoint(block):
            out = body(*[Value(self, a, tuple(s), d) for a, (s, d) in zip(block.arguments, args)])
            results = [out] if isinstance(out, Value) else list(out)
            self.hlo.return_([v.ir for v in results])
        return results

    def _scalar_region(self, region: Any, xs: Sequence[Value], body: Body) -> None:
        self._region(region, [((), x.dtype) for x in (*xs, *xs)], body)

    def reduce(self, xs: Sequence[Value], inits: Sequence[Operand], dims: Dims, body: Body) -> list[Value]:
        """Reduce several values together; body(*accumulators, *elements) -> accumulators, all 0-d."""
        dims = sorted(d % max(1, xs[0].ndim) for d in dims)
        shape = tuple(s for i, s in enumerate(xs[0].shape) if i not in dims)
        starts = [self.scalar(i, x.dtype) for i, x in zip(inits, xs)]
        types = [self._type(shape, x.dtype) for x in xs]
        op = self.hlo.ReduceOp(types, [x.ir for x in xs], [s.ir for s in starts], dims)
        self._scalar_region(op.regions[0], xs, body)
        return [Value(self, o, shape, x.dtype) for o, x in zip(op.results, xs)]

    def _reduce1(self, x: Value, init: Operand, dims: Dims | None, keepdim: bool, body: Body) -> Value:
        dims = range(x.ndim) if dims is None else [d % max(1, x.ndim) for d in dims]
        out = self.reduce([x], [init], dims, body)[0] if x.ndim and len(dims) else x
        if keepdim and x.ndim:
            out = self.reshape(out, tuple(1 if i in dims else s for i, s in enumerate(x.shape)))
        return out

    def reduce_sum(self, x: Value, dims: Dims | None = None, keepdim: bool = False) -> Value:
        """Sum over dims (None: all), in x's own dtype."""
        if x.dtype == torch.float32 and self._adds_one_by_one(x, dims):
            return self._reduce1(x.to(torch.float64), 0, dims, keepdim, self.add).to(x.dtype)
        return self._reduce1(x, 0, dims, keepdim, self.or_ if x.is_bool else self.add)

    def _adds_one_by_one(self, x: Value, dims: Dims | None) -> bool:
        """XLA:CPU sums many small dims without partial sums; of a dim longer than 32 it makes a tree."""
        sizes = [x.shape[d] for d in (range(x.ndim) if dims is None else dims)]
        return self.platform == "cpu" and math.prod(sizes) > 1024 and max(sizes) <= 32

    def reduce_prod(self, x: Value, dims: Dims | None = None, keepdim: bool = False) -> Value:
        return self._reduce1(x, 1, dims, keepdim, self.and_ if x.is_bool else self.multiply)

    def reduce_max(self, x: Value, dims: Dims | None = None, keepdim: bool = False) -> Value:
        """Maximum; NaN wins; -inf or the dtype's least over nothing."""
        return self._reduce1(x, dtypes.lowest(x.dtype), dims, keepdim, self.maximum)

    def reduce_min(self, x: Value, dims: Dims | None = None, keepdim: bool = False) -> Value:
        return self._reduce1(x, dtypes.highest(x.dtype), dims, keepdim, self.minimum)

    def reduce_and(self, x: Value, dims: Dims | None = None, keepdim: bool = False) -> Value:
        return self._reduce1(x, True if x.is_bool else -1, dims, keepdim, self.and_)

    def reduce_or(self, x: Value, dims: Dims | None = None, keepdim: bool = False) -> Value:
        return self._reduce1(x, 0, dims, keepdim, self.or_)

    def reduce_xor(self, x: Value, dims: Dims | None = None, keepdim: bool = False) -> Value:
        return self._reduce1(x, 0, dims, keepdim, self.xor)

    def reduce_window(
        self,
        xs: Sequence[Value],
        inits: Sequence[Operand],
        body: Body,
        window: Dims,
        *,
        strides: Dims | None = None,
        padding: Pairs | None = None,
        base_dilation: Dims | None = None,
        window_dilation: Dims | None = None,
    ) -> list[Value]:
        """Reduce over sliding windows; every list has one entry per dim of xs[0]."""
        rank = xs[0].ndim
        strides, base, dilation = (
            [1] * rank if v is None else list(v) for v in (strides, base_dilation, window_dilation)
        )
        padding = [(0, 0)] * rank if padding is None else list(padding)
        shape = tuple(
            _window_size(n, w, s, p, bd, wd)
            for n, w, s, p, bd, wd in zip(xs[0].shape, window, strides, padding, base, dilation)
        )
        starts = [self.scalar(i, x.dtype) for i, x in zip(inits, xs)]
        op = self.hlo.ReduceWindowOp(
            [self._type(shape, x.dtype) for x in xs],
            [x.ir for x in xs],
            [s.ir for s in starts],
            list(window),
            window_strides=strides,
            base_dilations=base,
            window_dilations=dilation,
            padding=self._pairs(padding),
        )
        self._scalar_region(op.regions[0], xs, body)
        return [Value(self, o, shape, x.dtype) for o, x in zip(op.results, xs)]

    def select_and_scatter(
        self,
        x: Value,
        source: Value,
        init: Operand,
        select: Body,
        scatter: Body,
        window: Dims,
        *,
        strides: Dims,
        padding: Pairs,
    ) -> Value:
        """Scatter `source` to the element each window of x selects."""
        op = self.hlo.SelectAndScatterOp(
            x.ir.type,
            x.ir,
            source.ir,
            self.scalar(init, x.dtype).ir,
            window_dimensions=list(window),
            window_strides=list(strides),
            padding=self._pairs(padding),
        )
        self._scalar_region(op.regions[0], [x], select)
        self._scalar_region(op.regions[1], [x], scatter)
        return Value(self, op.result, x.shape, x.dtype)

    def sort(self, xs: Sequence[Value], dim: int, comparator: Body, *, stable: bool = True) -> list[Value]:
        """Sort values together; comparator(a0, b0, a1, b1, ...) -> 0-d bool "a comes before b"."""
        op = self.hlo.SortOp([x.ir.type for x in xs], [x.ir for x in xs], dimension=dim % xs[0].ndim, is_stable=stable)
        self._region(op.regions[0], [((), x.dtype) for x in xs for _ in range(2)], comparator)
        return [Value(self, o, x.shape, x.dtype) for o, x in zip(op.results, xs)]

    def while_loop(self, init: Sequence[Value], cond: Body, body: Body) -> list[Value]:
        """Repeat body(*state) -> state while cond(*state) -> 0-d bool."""
        op = self.hlo.WhileOp([x.ir.type for x in init], [x.ir for x in init])
        args = [(x.shape, x.dtype) for x in init]
        self._region(op.regions[0], args, cond)
        self._region(op.regions[1], args, body)
        return [Value(self, o, x.shape, x.dtype) for o, x in zip(op.results, init)]

    def if_(self, pred: Value, then: Body, otherwise: Body) -> list[Value]:
        """then() or otherwise(), which return values of the same types; they capture what they use."""
        return self.case(self.select(pred, self.full((), 1, torch.int32), 0), [otherwise, then])

    def case(self, index: Value, branches: Sequence[Body]) -> list[Value]:
        """branches[index](), the last one for an index out of range."""
        # The result types are known only once a branch is built: build one in a throw-away op first.
        probe = self.hlo.CaseOp([], self.full((), 0, torch.int32).ir, 1)
        outs = self._region(probe.regions[0], [], branches[0])
        types = [v.ir.type for v in outs]
        probe.operation.erase()
        op = self.hlo.CaseOp(types, index.to(torch.int32).ir, len(branches))
        for region, branch in zip(op.regions, branches):
            self._region(region, [], branch)
        return [Value(self, o, v.shape, v.dtype) for o, v in zip(op.results, outs)]

    # ---- indexing

    def gather(
        self,
        x: Value,
        indices: Value,
        sizes: Dims,
        *,
        offset_dims: Dims,
        collapsed_dims: Dims,
        start_index_map: Dims,
        index_vector_dim: int,
        operand_batching_dims: Dims = (),
        indices_batching_dims: Dims = (),
        sorted_indices: bool = False,
    ) -> Value:
        """stablehlo.gather in its own terms; out-of-range starts are clamped."""
        numbers = self.hlo.GatherDimensionNumbers.get(
            list(offset_dims),
            list(collapsed_dims),
            list(operand_batching_dims),
            list(indices_batching_dims),
            list(start_index_map),
            index_vector_dim,
        )
        out = self.hlo.gather(x.ir, indices.ir, numbers, list(sizes), indices_are_sorted=sorted_indices)
        return Value(self, out, tuple(out.type.shape), x.dtype)

    def scatter(
        self,
        xs: Sequence[Value],
        indices: Value,
        updates: Sequence[Value],
        body: Body,
        *,
        update_window_dims: Dims,
        inserted_window_dims: Dims,
        scatter_dims_to_operand_dims: Dims,
        index_vector_dim: int,
        input_batching_dims: Dims = (),
        indices_batching_dims: Dims = (),
        sorted_indices: bool = False,
        unique_indices: bool = False,
    ) -> list[Value]:
        """stablehlo.scatter in its own terms; body(*current, *update) -> new; out-of-range updates are dropped."""
        numbers = self.hlo.ScatterDimensionNumbers.get(
            list(update_window_dims),
            list(inserted_window_dims),
            list(input_batching_dims),
            list(indices_batching_dims),
            list(scatter_dims_to_operand_dims),
            index_vector_dim,
        )
        op = self.hlo.ScatterOp(
            [x.ir.type for x in xs],
            [x.ir for x in xs],
            indices.ir,
            [u.ir for u in updates],
            numbers,
            indices_are_sorted=sorted_indices,
            unique_indices=unique_indices,
        )
        self._scalar_region(op.regions[0], xs, body)
        return [Value(self, o, x.shape, x.dtype) for o, x in zip(op.results, xs)]

    # ---- contractions and the rest

    def precision(self, dtype: torch.dtype) -> str:
        """The precision of contractions of this dtype: as torch.set_float32_matmul_precision asks, one pass where
        that is exact (bfloat16, float8, integers). LoweringError: the rule's family is not among registry._PRODUCTS, so
        that no program's key holds the precision."""
        if self.matmul_precision is None:
            from .registry import LoweringError

            raise LoweringError("a rule multiplies matrices, but its family is not among registry._PRODUCTS")
        exact = dtypes.is_integral(dtype) or (dtype.itemsize < 4 and dtype != torch.float16)
        return "DEFAULT" if exact else _PRECISION[self.matmul_precision]

    def _precision(self, x: Value, precision: str | None) -> Any:
        precision = precision or self.precision(x.dtype)
        if precision == "DEFAULT":
            return None
        return self.ir.ArrayAttr.get([self.hlo.PrecisionAttr.get(precision)] * 2)

    def _pairs(self, pairs: Pairs) -> Any:
        array = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
        return self.ir.DenseElementsAttr.get(array, shape=list(array.shape))

    def dot_general(
        self,
        x: Value,
        y: Value,
        *,
        contract: tuple[Dims, Dims],
        batch: tuple[Dims, Dims] = ((), ()),
        dtype: torch.dtype | None = None,
        precision: str | None = None,
    ) -> Value:
        """Result dims: batch, free dims of x, free dims of y.

        dtype: of the accumulator and the result. precision: DEFAULT, HIGH or HIGHEST; by default `self.precision`.
        """
        bx, by = ([d % v.ndim for d in ds] for v, ds in ((x, batch[0]), (y, batch[1])))
        cx, cy = ([d % v.ndim for d in ds] for v, ds in ((x, contract[0]), (y, contract[1])))
        shape = tuple(x.shape[d] for d in bx)
        for v, used in ((x, {*bx, *cx}), (y, {*by, *cy})):
            shape += tuple(s for i, s in enumerate(v.shape) if i not in used)
        dtype = dtype or x.dtype
        numbers = self.hlo.DotDimensionNumbers.get(bx, by, cx, cy)
        out = self.hlo.dot_general(
            self._type(shape, dtype), x.ir, y.ir, numbers, precision_config=self._precision(x, precision)
        )
        return Value(self, out, shape, dtype)

    def convolution(
        self,
        x: Value,
        w: Value,
        *,
        strides: Dims,
        padding: Pairs,
        lhs_dilation: Dims | None = None,
        rhs_dilation: Dims | None = None,
        groups: int = 1,
        batch_groups: int = 1,
        reverse: bool = False,
        dims: tuple[Dims, Dims, Dims] | None = None,
        dtype: torch.dtype | None = None,
        precision: str | None = None,
    ) -> Value:
        """dims: the places of (batch, feature, *spatial), (out, in, *spatial) and (batch, feature, *spatial) in
        x, w and the result; by default NCHW, OIHW, NCHW. reverse: flip the kernel."""
        n = x.ndim - 2
        xd, wd, od = ([list(d) for d in dims]) if dims else [list(range(n + 2))] * 3
        lhs_dilation = list(lhs_dilation) if lhs_dilation is not None else [1] * n
        rhs_dilation = list(rhs_dilation) if rhs_dilation is not None else [1] * n
        shape = [0] * (n + 2)
        shape[od[0]] = x.shape[xd[0]] // batch_groups
        shape[od[1]] = w.shape[wd[0]]
        for i in range(n):
            shape[od[2 + i]] = _window_size(
                x.shape[xd[2 + i]], w.shape[wd[2 + i]], strides[i], padding[i], lhs_dilation[i], rhs_dilation[i]
            )
        numbers = self.hlo.ConvDimensionNumbers.get(xd[0], xd[1], xd[2:], wd[1], wd[0], wd[2:], od[0], od[1], od[2:])
        dtype = dtype or x.dtype
        out = self.hlo.convolution(
            self._type(shape, dtype),
            x.ir,
            w.ir,
            numbers,
            groups,
            batch_groups,
            window_strides=list(strides),
            padding=self._pairs(padding),
            lhs_dilation=lhs_dilation,
            rhs_dilation=rhs_dilation,
            window_reversal=[reverse] * n,
            precision_config=self._precision(x, precision),
        )
        return Value(self, out, tuple(shape), dtype)

    def fft(self, x: Value, kind: str, lengths: Dims) -> Value:
        """kind: FFT, IFFT, RFFT or IRFFT over the last len(lengths) dims."""
        out = self.hlo.fft(x.ir, self.hlo.FftTypeAttr.get(kind), list(lengths))
        dtype = {"RFFT": dtypes.complex_of, "IRFFT": dtypes.real}.get(kind, lambda d: d)(x.dtype)
        return Value(self, out, tuple(out.type.shape), dtype)

    def cholesky(self, x: Value, *, lower: bool = True) -> Value:
        return Value(self, self.hlo.cholesky(x.ir, lower=lower), x.shape, x.dtype)

    def triangular_solve(
        self, a: Value, y: Value, *, left_side: bool, lower: bool, unit_diagonal: bool, transpose: str = "NO_TRANSPOSE"
    ) -> Value:
        """Solve op(a) x = y (or x op(a) = y); transpose: NO_TRANSPOSE, TRANSPOSE or ADJOINT."""
        attr = self.hlo.TransposeAttr.get(transpose)
        return Value(
            self, self.hlo.triangular_solve(a.ir, y.ir, left_side, lower, unit_diagonal, attr), y.shape, y.dtype
        )


UnaryMethod = Callable[[Builder, Value], Value]
BinaryMethod = Callable[[Builder, Operand, Operand], Value]


def _window_size(size: int, window: int, stride: int, pad: tuple[int, int], base: int, dilation: int) -> int:
    padded = (max(0, size - 1) * base + 1 if size else 0) + pad[0] + pad[1]
    span = (window - 1) * dilation + 1
    return 0 if padded < span else (padded - span) // stride + 1


__all__ = ["Builder", "Operand", "TensorSpec", "Value"]
