# Files of a program, in the child: those that it gets, and those that it leaves. Joined with
# driver.py.

import os as _os, stat as _stat, struct as _struct

FILES_SEEN = 4096  # entries of a directory that are looked at


def write_files(root, block):
    """Writes `u16 name length, u32 content length, name, content` for each file below the directory `root`."""
    at = 0
    while at < len(block):
        name_size, size = _struct.unpack_from("<HI", block, at)
        at += 6
        name = _os.path.join(root, block[at : at + name_size].decode())
        at += name_size
        _os.makedirs(_os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(block[at : at + size])
        at += size


def list_files(root):
    """Size and time of each regular file below the directory `root`, by path. A program may change the current one."""
    found, folders, seen = {}, [""], 0
    while folders:
        folder = folders.pop()
        try:
            names = sorted(_os.listdir(_os.path.join(root, folder)))
        except OSError:
            continue
        for name in names:
            seen += 1
            if seen > FILES_SEEN:
                return found
            path = _os.path.join(folder, name)
            try:
                status = _os.lstat(_os.path.join(root, path))
            except OSError:
                continue
            if _stat.S_ISDIR(status.st_mode):
                # Caches of libraries are not a program's own.
                if not name.startswith(".") and name != "__pycache__":
                    folders.append(path)
            elif _stat.S_ISREG(status.st_mode) and not name.startswith("."):
                found[path] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def new_files(root, before, most):
    """A block with the files that are new or changed: `u16 name length, u64 size, u32 content length, name, content`.
    At most `most` bytes of content; the length of content that is left out is 2^32 - 1."""
    pieces, left = [], most
    for path, status in sorted(list_files(root).items()):
        if before.get(path) == status:
            continue
        name = path.encode("utf-8", "backslashreplace")[:65535]
        size, content = status[0], None
        if size <= left:
            try:
                fd = _os.open(_os.path.join(root, path), _os.O_RDONLY | _os.O_NOFOLLOW | _os.O_NONBLOCK)
                with open(fd, "rb") as file:
                    content = file.read(left + 1)
            except OSError:
                content = None
            if content is not None and len(content) > left:
                content = None
        pieces.append(_struct.pack("<HQI", len(name), size, 0xFFFFFFFF if content is None else len(content)))
        pieces.append(name)
        if content is not None:
            left -= len(content)
            pieces.append(content)
        if len(pieces) > 3 * 64:
            break
    return b"".join(pieces)


def capture_plots():
    """Makes `pyplot.show` write open figures to plot_1.png, plot_2.png, …; returns that function."""
    from matplotlib import pyplot

    count = [0]

    def show(*_, **__):
        for number in pyplot.get_fignums():
            count[0] += 1
            pyplot.figure(number).savefig("plot_%d.png" % count[0])
        pyplot.close("all")

    pyplot.show = show
    return show
