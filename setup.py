"""Builds the native core `torch_tpu._C`; everything else about the package stands in pyproject.toml."""

import importlib.util
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent


def pjrt_header_folder() -> str:
    """The folder of pjrt_c_api.h, which the wheel xla-cpu-pjrt ships."""
    spec = importlib.util.find_spec("xla_plugins.xla_cpu_pjrt")
    if spec is None or spec.origin is None:
        raise SystemExit("building torch_tpu needs the PJRT header: pip install xla-cpu-pjrt")
    return str(Path(spec.origin).parent / "include")


setup(
    ext_modules=[
        CppExtension(
            "torch_tpu._C",
            sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/**/*.cpp")),
            include_dirs=[str(ROOT / "csrc"), pjrt_header_folder()],
            extra_compile_args=["-O2", "-g0", "-std=c++20", "-fvisibility=hidden", "-Wall"],
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=True)},
)
