# Describes an interpreter to the host: its real path and the files it needs. Runs unconfined,
# before any program, and imports every extension module to find the shared libraries that it loads.

import sys

sys.path = [path for path in sys.path if path]  # first of all: no module of the current directory is to run
import ctypes, importlib, json, os, sysconfig

executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
library = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
library.add(os.path.dirname(os.path.realpath(os.__file__)))
# The library without packages installed inside it.
read = {os.path.join(path, name) for path in library for name in os.listdir(path) if not name.endswith("-packages")}
read.update(os.path.realpath(path) for path in sys.path if os.path.realpath(path) not in library)
zones = sysconfig.get_config_var("TZPATH") or "/usr/share/zoneinfo"
read.update(zones.split(os.pathsep))

problem = None
for directory in sys.path:
    if os.path.basename(directory) != "lib-dynload":
        continue
    for file in sorted(os.listdir(directory)):
        name = file.split(".")[0]
        if name.startswith(("_test", "xx", "_xx", "_tkinter", "_curses", "readline")):
            continue
        try:
            importlib.import_module(name)
        except Exception:
            pass
preload, packages, wanted = json.loads(sys.argv[1])


def modules_of(package):
    """The modules of a package that is named as for `import` or as for `pip install`; None if it is not installed."""
    import importlib.metadata, importlib.util

    name = package.replace("-", "_")
    if importlib.util.find_spec(name.split(".")[0]):
        return [name]
    try:
        installed = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    names = (installed.read_text("top_level.txt") or "").split()
    names = names or sorted({path.parts[0].split(".")[0] for path in installed.files or [] if path.suffix == ".py"})
    return [name for name in names if importlib.util.find_spec(name)] or None


found = {name: modules_of(name) for name in wanted}
missing = [name for name in wanted if found[name] is None]
modules = [module for name in wanted for module in found[name] or []]
preload = preload + modules
for name in preload:
    try:
        importlib.import_module(name)
    except Exception as error:
        problem = problem or "can't import `%s`: %s: %s" % (name, type(error).__name__, error)
try:
    ctypes.CDLL("libgcc_s.so.1")  # loaded by glibc when a thread is cancelled
except OSError:
    pass

read.update((executable, "/etc/ld.so.cache"))
with open("/proc/self/maps") as maps:
    for line in maps:
        path = line.split(None, 5)[5:]
        if path and path[0].startswith("/"):
            file = path[0].rstrip("\n")
            read.add(file)
            # Packages may need any of the system's libraries.
            if packages and ".so" in os.path.basename(file):
                read.add(os.path.dirname(file))

print(json.dumps({
    "executable": executable,
    "version": list(sys.version_info[:3]),
    "implementation": sys.implementation.name,
    "read": sorted(filter(os.path.exists, map(os.path.realpath, read))),
    "list": sorted(library),
    "path": sys.path,
    "problem": problem,
    "missing": missing,
    "modules": modules,
}))
