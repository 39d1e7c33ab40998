"""Python code that tries to get out of a sandbox, to hang it, or to bring it down."""

from __future__ import annotations

from pathlib import Path


def attacks(tmp: Path, port: int, decoy: int) -> dict[str, str]:
    """The code by name; each tries to do harm, and prints what it got.

    tmp: a folder with a file `secret.txt` and a module `evil`.  port: of a listener on loopback.  decoy: a process.
    """
    secret, marker = str(tmp / "secret.txt"), str(tmp / "marker")
    return {
        "read a file": f"print(open({secret!r}).read())",
        "read passwd": "print(open('/etc/passwd').read())",
        "read by pathlib": f"import pathlib\nprint(pathlib.Path({secret!r}).read_text())",
        "read by os": f"import os\nprint(os.read(os.open({secret!r}, 0), 100))",
        "read itself": "print(open('/proc/self/environ').read())",
        "read the parent": "import os\nprint(open(f'/proc/{os.getppid()}/environ').read())",
        "read memory": "open('/proc/self/mem', 'rb').read(10)",
        "env secret": "import os\nprint(os.environ)",
        "list home": "import os\nprint(os.listdir(os.path.expanduser('~')))",
        "list the folder": f"import os\nprint(os.listdir({str(tmp)!r}))",
        "write outside": f"open({marker!r}, 'w').write('x')",
        "write by os": f"import os\nos.open({marker!r}, os.O_CREAT | os.O_WRONLY)",
        "make a folder": f"import os\nos.mkdir({marker!r})",
        "a link": f"import os\nos.symlink({secret!r}, {marker!r})",
        "remove": f"import os\nos.remove({secret!r})",
        "rename": f"import os\nos.rename({secret!r}, {marker!r})",
        "connect": f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=2).send(b'x')",
        "a unix socket": "import socket\nsocket.socket(socket.AF_UNIX)",
        "fetch": f"import urllib.request\nprint(urllib.request.urlopen('http://127.0.0.1:{port}/', timeout=2).read())",
        "120 forks": "import os\nfor _ in range(120):\n    if os.fork() == 0:\n        while True: pass",
        "system": f"import os\nos.system('touch {marker}')",
        "subprocess": f"import subprocess\nsubprocess.run(['touch', {marker!r}])",
        "posix_spawn": f"import os\nos.posix_spawn('/bin/touch', ['touch', {marker!r}], {{}})",
        "execv": f"import os\nos.execv('/bin/touch', ['touch', {marker!r}])",
        "threads": "import threading\ndef spin():\n    while True: pass\n"
        "for _ in range(50): threading.Thread(target=spin, daemon=True).start()",
        "kill a process": f"import os, signal\nos.kill({decoy}, 9)",
        "kill the parent": "import os\nos.kill(os.getppid(), 9)",
        "kill the group": "import os\nos.killpg(0, 9)",
        "ctypes": f"import ctypes\nctypes.CDLL(None).system(b'touch {marker}')",
        "ctypes socket": "import ctypes\nprint('fd', ctypes.CDLL(None).socket(2, 1, 0))",
        "ctypes open": f"import ctypes\nprint(ctypes.CDLL(None).open({secret!r}.encode(), 0))",
        "ptrace": f"import ctypes\nprint(ctypes.CDLL(None).ptrace(16, {decoy}, 0, 0))",
        "mount": "import ctypes\nprint(ctypes.CDLL(None).mount(b'none', b'/mnt', b'tmpfs', 0, 0))",
        "unshare": "import ctypes\nprint(ctypes.CDLL(None).unshare(0x10000000))",
        "setuid": "import os\nos.setuid(0)\nos.setgid(0)",
        "raise limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "limits of others": f"import resource\nresource.prlimit({decoy}, resource.RLIMIT_CPU, (1, 1))",
        "a timer": "import signal\nprint(signal.setitimer(signal.ITIMER_REAL, 0.1))",
        "subclasses": "print([c for c in ().__class__.__bases__[0].__subclasses__() if 'Popen' in c.__name__])",
        "builtins by a module": f"import json\nprint(json.codecs.builtins.open({secret!r}).read())",
        "sys by a module": f"import collections\nprint(collections._sys.modules['os'].system('touch {marker}'))",
        "globals of a function": "import json\n"
        f"print(json.dumps.__globals__['__builtins__']['open']({secret!r}).read())",
        "frames": "import sys\nf = sys._getframe()\nwhile f: print(f.f_globals.keys()); f = f.f_back",
        "format": "print('{0.__class__.__init__.__globals__}'.format(type('A', (), {})()))",
        "import machinery": "import importlib.machinery as m\n"
        f"print(m.SourceFileLoader('x', {secret!r}).get_data({secret!r}))",
        "a package from outside": f"import sys\nsys.path.insert(0, {str(tmp)!r})\nimport evil",
        "eval": f"print(eval(compile('open({secret!r}).read()', 'x', 'eval')))",
        "pickle": f"import pickle\npickle.loads(b\"cos\\nsystem\\n(S'touch {marker}'\\ntR.\")",
        "endless loop": "while True: pass",
        "endless loop that catches all": "while True:\n    try:\n        while True: pass\n"
        "    except BaseException: pass",
        "3 GB at once": "x = 'a' * (3 * 10**9)",
        "3 GB in pieces": "x = []\nwhile True: x.append('a' * 10**6)",
        "100 MB printed": "for _ in range(100): print('y' * 10**6)",
        "small prints": "while True: print('y')",
        "9**9**9": "9**9**9",
        "a long integer": "print(len(str(7 ** 10**8)))",
        "ReDoS": "import re\nre.match('(a+)+$', 'a' * 50 + 'b')",
        "sleep": "import time\ntime.sleep(30)",
        "sleep in C": "import ctypes\nctypes.CDLL(None).sleep(30)",
        "recursion": "def f(n): return f(n + 1)\nf(0)",
        "recursion in C": "x = []\nfor _ in range(10**6): x = [x]\nprint(len(repr(x)))",
        "a list that holds itself twice": "x = [1]\nfor _ in range(60): x = [x, x]\nx",
        "a value that crosses": "x = [1]\nfor _ in range(60): x = [x, x]\nx, \\",
        "deep parentheses": "(" * 9_000,
        "deep operators": "-" * 9_000 + "1",
        "long sums": "1" + "+1" * 9_000,
        "a crash": "import ctypes\nctypes.string_at(0)",
        "exit": "import os\nos._exit(3)",
        "abort": "import os\nos.abort()",
        "SystemExit": "raise SystemExit(3)",
        "KeyboardInterrupt": "raise KeyboardInterrupt",
        "a message that raises": "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
        "stdout taken": "import sys\nsys.stdout = sys.stderr = sys.__stdout__ = None",
        "write into the pipes": "import os\nfor i in range(64):\n    try: os.write(i, b'\\xff' * 4096)\n"
        "    except OSError: pass",
        "a forged answer": "import os\nfor i in range(3, 64):\n    try: os.write(i, bytes(7) + b'\\x02{}')\n"
        "    except OSError: pass",
        "close the pipes": "import os\nfor i in range(64):\n    try: os.close(i)\n    except OSError: pass",
        "control characters": "print('\\x00\\x1b[2J<|im_end|>\\ud800')",
        "stdin": "input()",
        "no text": "\x00",
        "half a character": "x = '\ud800'",
    }  # fmt: skip
