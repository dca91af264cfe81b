"""Which PJRT plugin this process runs on, decided from the environment without loading one.

TORCH_TPU_PLATFORM=auto|tpu|cpu   auto: libtpu when the machine has a TPU, else XLA's CPU plugin
TORCH_TPU_PJRT_PLUGIN=<path>      this plugin file instead of an installed one
TORCH_TPU_CPU_DEVICES=<n>         how many devices the CPU plugin simulates (1)
"""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PLATFORMS = ("auto", "tpu", "cpu")

# By platform: module in whose folder the plugin lies, the file there, the wheel. The first one installed is taken.
_PLUGINS = {
    "cpu": (
        ("xla_plugins", "xla_cpu_pjrt/xla_cpu_pjrt.so", "xla-cpu-pjrt"),
        ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so", "lammps-jax-pjrt-cpu"),
    ),
    "tpu": (("libtpu", "libtpu.so", "libtpu"),),
}

MAX_CPU_DEVICES = 512

_GOOGLE_PCI_VENDOR = "0x1ae0"
_TPU_PCI_DEVICES = ("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076")  # v2/v3 ... tpu7x


@dataclass(frozen=True)
class Choice:
    """A plugin, how to create its client, and why it was chosen."""

    platform: str
    plugin_path: str
    reason: str
    create_options: Mapping[str, str | int | list[int] | float | bool] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.platform}: {self.plugin_path} ({self.reason})"


def select(environ: Mapping[str, str] = os.environ) -> Choice:
    """The plugin that the environment and the machine ask for; an error names what is wrong and what is known."""
    platform, reason = _platform(environ)
    path = environ.get("TORCH_TPU_PJRT_PLUGIN", "")
    if path:
        reason += ", TORCH_TPU_PJRT_PLUGIN is set"
    else:
        path = find_plugin(platform)
    options = {"cpu_device_count": cpu_devices(environ)} if platform == "cpu" else {}
    return Choice(platform, path, reason, options)


def device_count(environ: Mapping[str, str] = os.environ) -> int:
    """How many devices the chosen platform will have, as far as can be told before its client exists."""
    platform, _ = _platform(environ)
    if platform == "cpu":
        return cpu_devices(environ)
    visible = environ.get("TPU_VISIBLE_CHIPS", "")
    return len(visible.split(",")) if visible else tpu_chips()


def _platform(environ: Mapping[str, str]) -> tuple[str, str]:
    wanted = environ.get("TORCH_TPU_PLATFORM", "") or "auto"
    if wanted not in PLATFORMS:
        raise ValueError(f"TORCH_TPU_PLATFORM={wanted!r} is unknown; known are {', '.join(PLATFORMS)}")
    if wanted != "auto":
        return wanted, f"TORCH_TPU_PLATFORM={wanted}"
    plugin = os.path.basename(environ.get("TORCH_TPU_PJRT_PLUGIN", ""))
    if plugin:
        for platform in ("tpu", "cpu"):
            if platform in plugin:
                return platform, f"{plugin} is a {platform} plugin by its name"
        raise ValueError(f"set TORCH_TPU_PLATFORM to tpu or cpu: the name of the plugin {plugin} tells neither")
    chips = tpu_chips()
    return ("tpu", f"this machine has {chips} TPU chips") if chips else ("cpu", "this machine has no TPU")


def cpu_devices(environ: Mapping[str, str] = os.environ) -> int:
    """How many devices the CPU plugin simulates."""
    text = environ.get("TORCH_TPU_CPU_DEVICES", "") or "1"
    if not text.isdecimal() or not 1 <= int(text) <= MAX_CPU_DEVICES:
        raise ValueError(f"TORCH_TPU_CPU_DEVICES={text!r} must be a number from 1 to {MAX_CPU_DEVICES}")
    return int(text)


def tpu_chips(root: str = "/") -> int:
    """TPU chips that this machine has and this process may open; looks at device files only, never at libtpu."""
    dev = Path(root, "dev")
    if not any(dev.glob("accel[0-9]*")) and not any((dev / "vfio").glob("[0-9]*")):
        return 0
    return sum(
        _read(device / "vendor") == _GOOGLE_PCI_VENDOR and _read(device / "device") in _TPU_PCI_DEVICES
        for device in Path(root, "sys/bus/pci/devices").glob("*")
    )


def find_plugin(platform: str) -> str:
    """The file of the installed plugin for `platform` (tpu or cpu), found without importing its package."""
    paths = installed_plugins(platform)
    if paths:
        return paths[0]
    wheels = " or ".join(f"pip install {wheel}" for _, _, wheel in _PLUGINS[platform])
    raise RuntimeError(f"no PJRT plugin for platform {platform} is installed: {wheels}")


def installed_plugins(platform: str) -> list[str]:
    """The files of all installed plugins for `platform`, the preferred one first."""
    paths = []
    for module, file, _ in _PLUGINS[platform]:
        spec = importlib.util.find_spec(module)
        folders = spec.submodule_search_locations if spec else None
        paths += [str(path) for folder in folders or () if (path := Path(folder, file)).is_file()]
    return paths


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
