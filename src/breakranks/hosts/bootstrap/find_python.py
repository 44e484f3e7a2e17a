"""The part of stage one that any Python can run, even 2.7: if this Python is too old, it looks for a newer one.

It is not imported: ``shell_command`` puts its source on the command line of the remote Python. There ``text`` is the
list of sources that were sent: this one, ``stage1`` and ``install``. The first argument has the options, the others are
more Pythons to try.
"""

import os
import sys

if sys.version_info >= (3, 10):  # noqa: UP036
    scope = {"__name__": "breakranks_stage_one", "later": text[2]}  # type: ignore[name-defined]  # noqa: F821
    exec(compile(text[1], "<breakranks stage1>", "exec"), scope)  # type: ignore[name-defined]  # noqa: F821
    sys.exit(scope["arrive"](sys.argv[1]))
else:
    import base64
    import json
    import subprocess

    ask = "import sys;print(sys.version.split()[0])"
    found = [sys.executable + " " + sys.version.split()[0]]
    seen = set([os.path.realpath(sys.executable)])  # noqa: C405
    for name in sys.argv[2:]:
        for folder in [""] if "/" in name else os.environ.get("PATH", os.defpath).split(":"):
            path = os.path.join(folder, os.path.expanduser(name))
            if os.path.realpath(path) in seen or not os.access(path, os.X_OK) or os.path.isdir(path):
                continue
            seen.add(os.path.realpath(path))
            try:
                asked = subprocess.Popen([path, "-c", ask], stdin=subprocess.PIPE, stdout=-1, stderr=-1)
                version = asked.communicate()[0].decode().strip()
                if tuple([int(part) for part in version.split(".")[:2]]) >= (3, 10):
                    own = open("/proc/self/cmdline", "rb").read().split(b"\0")  # noqa: SIM115
                    own_text = own[own.index(b"-c") + 1]
                    os.execv(path, [path, "-c", own_text, sys.argv[1]])
            except (OSError, ValueError):
                continue
            found.append(path + " " + version)
    said = ("j" + json.dumps({"stage": "no-python", "found": found})).encode()
    line = ["@br1", sys.argv[1].split(",")[0], os.uname()[1], "0", ".", base64.b64encode(said).decode()]
    os.write(1, (" ".join(line) + "\n").encode())
    sys.exit(3)
