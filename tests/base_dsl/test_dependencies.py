"""Ways to change what a trace has read. After each, a call gives what the changed program says, not what was compiled.

Every case is a module with a jit function `f` that multiplies by 2, and a change after which it multiplies by 5. It is
called often enough before the change that native code takes the calls.
"""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import sys
import textwrap

import pytest

import kiln
from kiln.base_dsl import dependencies
from kiln.base_dsl.dependencies import is_library_class

HEAD = """
import abc, argparse, array, builtins, collections, configparser, contextlib, contextvars, ctypes, dataclasses, enum, functools, importlib
import io, itertools, operator, os, queue, random, sys, threading, types, typing, weakref
import numpy as np
from kiln import Constexpr, Int32, cute
conf = types.ModuleType("conf")
conf.K, conf.sub = 2, types.ModuleType("conf.sub")
conf.sub.K, conf.sub.TABLE = 2, [2]
sys.modules["kiln_test_conf"], sys.modules["kiln_test_conf.sub"] = conf, conf.sub
"""

REST = "class C:\n def __init__(self, k): self.k, self.rest = k, []\n"
"""A class whose objects have an attribute that most cases do not read."""

CASES = {
    # names
    "a global": ("K = 2; f = jit(lambda a: a * K)", "K = 5"),
    "a global of a helper": ("K = 2\ndef g(a): return a * K\nf = jit(lambda a: g(a))", "K = 5"),
    "a helper": ("def g(a): return a * 2\nf = jit(lambda a: g(a))", "def g(a): return a * 5"),
    "a closure cell": (
        "def make():\n k = 2\n def change(): nonlocal k; k = 5\n def g(a): return a * k\n return g, change\n"
        "g, change = make()\nf = jit(lambda a: g(a))",
        "change()",
    ),
    "a global that hides a builtin": ("f = jit(lambda a: a * len((1, 2)))", "len = lambda x: 5"),
    "a builtin that somebody added": ("builtins.kiln_test = 2\nf = jit(lambda a: a * kiln_test)", "builtins.kiln_test = 5"),
    "a global that is missing at first": (
        "def g():\n try: return K\n except NameError: return 2\nf = jit(lambda a: a * g())", "K = 5",
    ),
    "a nested function's global": ("K = 2\ndef g(a):\n def h(): return K\n return a * h()\nf = jit(lambda a: g(a))", "K = 5"),
    "a comprehension's global": ("K = 2\ndef g(a): return a * sum([K for _ in range(1)])\nf = jit(lambda a: g(a))", "K = 5"),
    # containers
    "a list": ("L = [2]; f = jit(lambda a: a * L[0])", "L[0] = 5"),
    "a dict": ("D = {'k': 2}; f = jit(lambda a: a * D['k'])", "D['k'] = 5"),
    "a view of a dict": ("D = {'k': 2}; V = D.values(); f = jit(lambda a: a * sum(V))", "D['k'] = 5"),
    "a dict of a user's": ("U = collections.UserDict(k=2); f = jit(lambda a: a * U['k'])", "U['k'] = 5"),
    "a list of a user's": ("U = collections.UserList([2]); f = jit(lambda a: a * U[0])", "U[0] = 5"),
    "a chain of dicts": ("U = collections.ChainMap({'k': 2}); f = jit(lambda a: a * U['k'])", "U['k'] = 5"),
    "a bound method of a list": ("L = [2]; g = L.__getitem__; f = jit(lambda a: a * g(0))", "L[0] = 5"),
    "a list in an iterator": ("L = [2]; R = itertools.repeat(L); f = jit(lambda a: a * next(R)[0])", "L[0] = 5"),
    "a list in a tuple": ("T = ([2],); f = jit(lambda a: a * T[0][0])", "T[0][0] = 5"),
    "a set": ("S = {2}; f = jit(lambda a: a * max(S))", "S.add(5)"),
    "a deque": ("Q = collections.deque([2]); f = jit(lambda a: a * Q[0])", "Q[0] = 5"),
    "a default dictionary": ("D = collections.defaultdict(int, k=2); f = jit(lambda a: a * D['k'])", "D['k'] = 5"),
    "an ordered dictionary": (
        "D = collections.OrderedDict(a=2, b=5); f = jit(lambda a: a * next(iter(D.values())))", "D.move_to_end('a')",
    ),
    "a counter": ("C = collections.Counter(x=2); f = jit(lambda a: a * C['x'])", "C.update(x=3)"),
    "a bytearray": ("B = bytearray([2]); f = jit(lambda a: a * B[0])", "B[0] = 5"),
    "a memory view": ("B = bytearray([2]); V = memoryview(B); f = jit(lambda a: a * V[0])", "B[0] = 5"),
    "an array of Python's": ("A = array.array('i', [2]); f = jit(lambda a: a * A[0])", "A[0] = 5"),
    "an array of numpy's": ("A = np.array([2]); f = jit(lambda a: a * int(A[0]))", "A[0] = 5"),
    "an array of numpy's in an object": (
        "N = types.SimpleNamespace(a=np.array([1, 2])); f = jit(lambda a: a * int(N.a[1]))", "N.a[1] = 5",
    ),
    "a view of an array": ("A = np.array([2]); V = A[:]; f = jit(lambda a: a * int(V[0]))", "A[0] = 5"),
    "a large array": ("A = np.full(100000, 2); f = jit(lambda a: a * int(A[70000]))", "A[70000] = 5"),
    "a structure of ctypes": (
        "class S(ctypes.Structure): _fields_ = [('k', ctypes.c_int)]\nS1 = S(2); f = jit(lambda a: a * S1.k)", "S1.k = 5",
    ),
    "a read-only view of a dict": (
        "D = {'k': 2}; P = types.MappingProxyType(D); f = jit(lambda a: a * P['k'])", "D['k'] = 5",
    ),
    "a generator of random numbers": (
        "R = random.Random(0); start = R.getstate()\ndef g(): R.setstate(start); return 2\n"
        "f = jit(lambda a: a * (2 if R.getstate() == start else 5))",
        "R.random()",
    ),
    # objects
    "an attribute of an object": ("N = types.SimpleNamespace(k=2); f = jit(lambda a: a * N.k)", "N.k = 5"),
    "an attribute of options": (
        "N = argparse.Namespace(n=argparse.Namespace(k=2)); f = jit(lambda a: a * N.n.k)", "N.n.k = 5",
    ),
    "an attribute by a weak reference": (
        "class C: pass\nX = C(); X.k = 2; R = weakref.ref(X); f = jit(lambda a: a * R().k)", "X.k = 5",
    ),
    "a slot": (
        "class S:\n __slots__ = ('__k',)\n def get(self): return self.__k\n def set(self, k): self.__k = k\n"
        "X = S(); X.set(2); f = jit(lambda a: a * X.get())",
        "X.set(5)",
    ),
    "an attribute of a subclass of int": (
        "class I(int): pass\nX = I(1); X.k = 2; f = jit(lambda a: a * X.k)", "X.k = 5",
    ),
    "the class of an object": (
        "class A: k = 2\nclass B: k = 5\nX = A(); f = jit(lambda a: a * X.k)", "X.__class__ = B",
    ),
    "a context variable": ("V = contextvars.ContextVar('V', default=2); f = jit(lambda a: a * V.get())", "V.set(5)"),
    "an attribute of a thread": ("L = threading.local(); L.k = 2; f = jit(lambda a: a * L.k)", "L.k = 5"),
    "a field of an object in C": (
        "class E(Exception): pass\nX = E(2); f = jit(lambda a: a * X.args[0])", "X.args = (5,)",
    ),
    "the value of an enumeration's member": (
        "class E(enum.Enum): A = 2\nf = jit(lambda a: a * E.A.value)", "E.A._value_ = 5",
    ),
    "the value of a member in a list": (
        "class E(enum.Enum): A = 2\nL = [E.A]; f = jit(lambda a: a * L[0].value)", "E.A._value_ = 5",
    ),
    "an attribute that an enumeration's member gains": (
        "class E(enum.Enum): A = 1\nf = jit(lambda a: a * getattr(E.A, 'k', 2))", "E.A.k = 5",
    ),
    "an attribute of a member among the arguments": (
        "class E(enum.Enum): A = 1\n@cute.jit\ndef g(a: Int32, e: Constexpr): return a * getattr(e, 'k', 2)\ndef f(a): return g(a, E.A)",
        "E.A.k = 5",
    ),
    "an attribute by a weak proxy": (
        "class C: pass\nX = C(); X.k = 2; R = weakref.proxy(X); f = jit(lambda a: a * R.k)", "X.k = 5",
    ),
    "an attribute by a weak proxy that can be called": (
        "class C:\n def __call__(self): return self.k\nX = C(); X.k = 2; R = weakref.proxy(X); f = jit(lambda a: a * R())", "X.k = 5",
    ),
    "a weak proxy of what is gone": (
        "class C: pass\nX = C(); X.k = 2; R = weakref.proxy(X)\ndef g():\n try: return R.k\n except ReferenceError: return 5\n"
        "f = jit(lambda a: a * g())",
        "del X",
    ),
    "a text in memory": ("T = io.StringIO('2'); f = jit(lambda a: a * int(T.getvalue()))", "T.seek(0); T.write('5')"),
    "bytes in memory": ("T = io.BytesIO(b'2'); f = jit(lambda a: a * int(T.getvalue()))", "T.seek(0); T.write(b'5')"),
    "where a text is read": (
        "T = io.StringIO('2\\n5\\n')\ndef g():\n at = T.tell(); line = T.readline(); T.seek(at); return int(line)\n"
        "f = jit(lambda a: a * g())",
        "T.readline()",
    ),
    "a file of settings": (
        "C = configparser.ConfigParser(); C.read_string('[s]\\nk = 2'); f = jit(lambda a: a * C.getint('s', 'k'))", "C['s']['k'] = '5'",
    ),
    "a section of settings": (
        "C = configparser.ConfigParser(); C.read_string('[s]\\nk = 2'); S = C['s']; f = jit(lambda a: a * int(S['k']))",
        "C['s']['k'] = '5'",
    ),
    "a queue": ("Q = queue.Queue(); Q.put(1); Q.put(1); f = jit(lambda a: a * Q.qsize())", "Q.put(1); Q.put(1); Q.put(1)"),
    "a string of a user's": ("U = collections.UserString('2'); f = jit(lambda a: a * int(U))", "U.data = '5'"),
    "what is registered with an abstract class": (
        "class I(abc.ABC): pass\nclass C: pass\nX = C(); f = jit(lambda a: a * (5 if isinstance(X, I) else 2))", "I.register(C)",
    ),
    "what is registered with an abstract class's child": (
        "class I(abc.ABC): pass\nclass J(I): pass\nclass C: pass\nX = C(); f = jit(lambda a: a * (5 if issubclass(C, I) else 2))",
        "J.register(C)",
    ),
    "what is registered with an abstract class of a library": (
        "class C: pass\nX = C(); f = jit(lambda a: a * (5 if isinstance(X, collections.abc.Sized) else 2))",
        "collections.abc.Sized.register(C)",
    ),
    "what is registered with a class of a pattern": (
        "class I(abc.ABC): pass\nclass C: pass\nX = C()\ndef g():\n match X:\n  case I(): return 5\n  case _: return 2\n"
        "f = jit(lambda a: a * g())",
        "I.register(C)",
    ),
    "whether an object follows a protocol": (
        "@typing.runtime_checkable\nclass I(typing.Protocol):\n def go(self): ...\nclass C: pass\nX = C()\n"
        "f = jit(lambda a: a * (5 if isinstance(X, I) else 2))",
        "C.go = lambda self: 1",
    ),
    "whether an object can be called": (
        "class C: pass\nX = C(); f = jit(lambda a: a * (5 if callable(X) else 2))", "C.__call__ = lambda self: 1",
    ),
    "whether an object has a length": (
        "class C: pass\nX = C(); f = jit(lambda a: a * (2 if X else 5))", "C.__len__ = lambda self: 0",
    ),
    "the attributes that patterns compare": (
        "class C:\n __match_args__ = ('p',); p = 2; q = 5\nX = C()\ndef g():\n match X:\n  case C(v): return v\n"
        "f = jit(lambda a: a * g())",
        "C.__match_args__ = ('q',)",
    ),
    "an attribute that a pattern compares by position": (
        "class C:\n __match_args__ = ('p',); p = 2\nX = C()\ndef g():\n match X:\n  case C(v): return v\nf = jit(lambda a: a * g())",
        "C.p = 5",
    ),
    "the name of a function": ("def g(): pass\ng.__name__ = 'ab'; f = jit(lambda a: a * len(g.__name__))", "g.__name__ = 'abcde'"),
    "the name of a class": ("class Ab: pass\nf = jit(lambda a: a * len(Ab().__class__.__name__))", "Ab.__name__ = 'Abcde'"),
    "the long name of a class": ("class Ab: pass\nf = jit(lambda a: a * len(Ab.__qualname__))", "Ab.__qualname__ = 'Abcde'"),
    "the bases of an object's class": (
        "class A: K = 2\nclass B: K = 5\nclass D(A): pass\nX = D(); X.n = 1; f = jit(lambda a: a * X.K * X.n)", "D.__bases__ = (B,)",
    ),
    "an attribute of an enumeration's member": (
        "class E(enum.Enum): A = 1\nE.A.k = 2; f = jit(lambda a: a * E.A.k)", "E.A.k = 5",
    ),
    # classes
    "a number in a class": ("class C: K = 2\nf = jit(lambda a: a * C.K)", "C.K = 5"),
    "a list in a class": ("class C: L = [2]\nf = jit(lambda a: a * C.L[0])", "C.L[0] = 5"),
    "a dict in a class": ("class C: D = {'k': 2}\nf = jit(lambda a: a * C.D['k'])", "C.D['k'] = 5"),
    "a None in a class": ("class C: K = None\nf = jit(lambda a: a * (2 if C.K is None else C.K))", "C.K = 5"),
    "a method": (
        "class C:\n def m(self, a): return a * 2\nX = C(); f = jit(lambda a: X.m(a))", "C.m = lambda self, a: a * 5",
    ),
    "a static method": (
        "class C:\n @staticmethod\n def m(a): return a * 2\nf = jit(lambda a: C.m(a))", "C.m = staticmethod(lambda a: a * 5)",
    ),
    "a class method's global": (
        "K = 2\nclass C:\n @classmethod\n def m(cls, a): return a * K\nf = jit(lambda a: C.m(a))", "K = 5",
    ),
    "a subclass that shadows": (
        "class A: K = 2\nclass B(A): pass\nX = B(); f = jit(lambda a: a * X.K)", "B.K = 5",
    ),
    "a method of a base": (
        "class A:\n def m(self): return 2\nclass B(A): pass\nX = B(); f = jit(lambda a: a * X.m())", "A.m = lambda self: 5",
    ),
    "other bases": (
        "class A: K = 2\nclass B: K = 5\nclass D(A): pass\nf = jit(lambda a: a * D.K)", "D.__bases__ = (B,)",
    ),
    "a global read by a property": (
        "K = 2\nclass C:\n @property\n def k(self): return K\nX = C(); f = jit(lambda a: a * X.k)", "K = 5",
    ),
    "a property": ("class C: k = property(lambda self: 2)\nX = C(); f = jit(lambda a: a * X.k)", "C.k = property(lambda self: 5)"),
    "an operator": (
        "class C:\n def __index__(self): return 2\nX = C(); f = jit(lambda a: a * X.__index__())", "C.__index__ = lambda s: 5",
    ),
    "a method that is added": (
        "class C: pass\nX = C(); f = jit(lambda a: a * (X.k() if hasattr(X, 'k') else 2))", "C.k = lambda self: 5",
    ),
    "a call operator's global": (
        "K = 2\nclass C:\n def __call__(self, a): return a * K\nX = C(); f = jit(lambda a: X(a))", "K = 5",
    ),
    "a metaclass": (
        "class M(type): K = 2\nclass C(metaclass=M): pass\nf = jit(lambda a: a * C.K)", "M.K = 5",
    ),
    "a default of a data class": (
        "@dataclasses.dataclass\nclass C: k: int = 2\nf = jit(lambda a: a * C().k)", "C.__init__.__defaults__ = (5,)",
    ),
    "an object made in the trace": (
        "class C:\n def __init__(self): self.k = 2\nf = jit(lambda a: a * C().k)",
        "C.__init__ = lambda self: setattr(self, 'k', 5)",
    ),
    # modules
    "an attribute of a module": ("f = jit(lambda a: a * conf.K)", "conf.K = 5"),
    "an attribute of a submodule": ("f = jit(lambda a: a * conf.sub.K)", "conf.sub.K = 5"),
    "a list in a submodule": ("f = jit(lambda a: a * conf.sub.TABLE[0])", "conf.sub.TABLE[0] = 5"),
    "a submodule": ("f = jit(lambda a: a * conf.sub.K)", "conf.sub = types.SimpleNamespace(K=5)"),
    "a function of a submodule": (
        "conf.sub.g = lambda a: a * 2\nf = jit(lambda a: conf.sub.g(a))", "conf.sub.g = lambda a: a * 5",
    ),
    "a global of a function of a submodule": (
        "exec('K = 2\\ndef g(a): return a * K', vars(conf.sub))\nf = jit(lambda a: conf.sub.g(a))", "conf.sub.K = 5",
    ),
    "a class of a submodule": (
        "conf.sub.C = type('C', (), {'K': 2})\nf = jit(lambda a: a * conf.sub.C.K)", "conf.sub.C.K = 5",
    ),
    "a module in a variable": ("def g(): return conf.sub\nf = jit(lambda a: a * g().K)", "conf.sub.K = 5"),
    "a module in a dict": ("D = {'c': conf}; f = jit(lambda a: a * D['c'].K)", "conf.K = 5"),
    "a module that makes attributes": (
        "k = 2; conf.__getattr__ = lambda name: k\nf = jit(lambda a: a * conf.UNKNOWN)", "k = 5",
    ),
    "getattr of a module": ("f = jit(lambda a: a * getattr(conf, 'K'))", "conf.K = 5"),
    "getattr with a default": ("f = jit(lambda a: a * getattr(conf, 'NEW', 2))", "conf.NEW = 5"),
    "getattr by a name that is worked out": ("f = jit(lambda a: a * getattr(conf, 'k'.upper()))", "conf.K = 5"),
    "getattr under another name": ("g = getattr; f = jit(lambda a: a * g(conf, 'K'))", "conf.K = 5"),
    "getattr in a partial": ("P = functools.partial(getattr, conf, 'K'); f = jit(lambda a: a * P())", "conf.K = 5"),
    "attrgetter": ("g = operator.attrgetter('K'); f = jit(lambda a: a * g(conf))", "conf.K = 5"),
    "methodcaller": (
        "class C:\n def m(self): return 2\nX = C(); g = operator.methodcaller('m'); f = jit(lambda a: a * g(X))",
        "C.m = lambda self: 5",
    ),
    "sys.modules": ("f = jit(lambda a: a * sys.modules['kiln_test_conf.sub'].K)\ndel conf", "sys.modules['kiln_test_conf.sub'].K = 5"),
    "import_module": (
        "f = jit(lambda a: a * importlib.import_module('kiln_test_conf.sub').K)\ndel conf",
        "sys.modules['kiln_test_conf.sub'].K = 5",
    ),
    "globals()": ("K = 2; f = jit(lambda a: a * globals()['K'])", "K = 5"),
    "globals() in a helper": ("K = 2\ndef g(n): return globals()[n]\nf = jit(lambda a: a * g('K'))", "K = 5"),
    "vars of a module": ("f = jit(lambda a: a * vars(conf)['K'])", "conf.K = 5"),
    "__dict__ of a module": ("f = jit(lambda a: a * conf.__dict__['K'])", "conf.K = 5"),
    "eval": ("K = 2\ndef g(): return eval('K')\nf = jit(lambda a: a * g())", "K = 5"),
    "an import inside": (
        "@cute.jit\ndef f(a: Int32):\n import kiln_test_conf as c\n return a * c.K", "conf.K = 5",
    ),
    "an import of a submodule inside": (
        "@cute.jit\ndef f(a: Int32):\n import kiln_test_conf.sub\n return a * kiln_test_conf.sub.K", "conf.sub.K = 5",
    ),
    "a name imported inside": (
        "@cute.jit\ndef f(a: Int32):\n from kiln_test_conf.sub import K\n return a * K", "conf.sub.K = 5",
    ),
    "a name imported inside a helper": (
        "def g():\n from kiln_test_conf import K\n return K\nf = jit(lambda a: a * g())", "conf.K = 5",
    ),
    "another module under the name": (
        "@cute.jit\ndef f(a: Int32):\n import kiln_test_conf as c\n return a * c.K",
        "sys.modules['kiln_test_conf'] = types.SimpleNamespace(K=5)",
    ),
    "an environment variable": (
        "os.environ['KILN_TEST'] = '2'\nf = jit(lambda a: a * int(os.environ['KILN_TEST']))", "os.environ['KILN_TEST'] = '5'",
    ),
    "an environment variable with a default": (
        "os.environ.pop('KILN_TEST', None)\nf = jit(lambda a: a * int(os.getenv('KILN_TEST', '2')))",
        "os.environ['KILN_TEST'] = '5'",
    ),
    "the environment under another name": (
        "os.environ['KILN_TEST'] = '2'; E = os.environ\nf = jit(lambda a: a * int(E['KILN_TEST']))", "os.environ['KILN_TEST'] = '5'",
    ),
    "a method of the environment": (
        "os.environ['KILN_TEST'] = '2'; E = os.environ.get\nf = jit(lambda a: a * int(E('KILN_TEST')))", "os.environ['KILN_TEST'] = '5'",
    ),
    "getenv under another name": (
        "os.environ['KILN_TEST'] = '2'; E = os.getenv\nf = jit(lambda a: a * int(E('KILN_TEST')))", "os.environ['KILN_TEST'] = '5'",
    ),
    # functions
    "a global of a context manager": (
        "K = 2\n@contextlib.contextmanager\ndef g(): yield K\n@cute.jit\ndef f(a: Int32):\n with g() as k: return a * k", "K = 5",
    ),
    "a global of a function chosen by type": (
        "K = 2\n@functools.singledispatch\ndef g(x): return K\nf = jit(lambda a: a * g(1))", "K = 5",
    ),
    "a function added for a type": (
        "@functools.singledispatch\ndef g(x): return 2\nf = jit(lambda a: a * g(1))", "g.register(int, lambda x: 5)",
    ),
    "a global of a method chosen by type": (
        "K = 2\nclass C:\n @functools.singledispatchmethod\n def g(self, x): return K\nX = C(); f = jit(lambda a: a * X.g(1))", "K = 5",
    ),
    "a global read while sorting": (
        "K = 1\ndef order(x, y): return (x - y) * K\nkey = functools.cmp_to_key(order)\n"
        "f = jit(lambda a: a * min([2, 5], key=key))",
        "K = -1",
    ),
    "defaults of a helper": ("def g(a, k=2): return a * k\nf = jit(lambda a: g(a))", "g.__defaults__ = (5,)"),
    "a list among the defaults": ("def g(a, k=[2]): return a * k[0]\nf = jit(lambda a: g(a))", "g.__defaults__[0][0] = 5"),
    "defaults by name of a helper": ("def g(a, *, k=2): return a * k\nf = jit(lambda a: g(a))", "g.__kwdefaults__ = {'k': 5}"),
    "a default by name of a helper": ("def g(a, *, k=2): return a * k\nf = jit(lambda a: g(a))", "g.__kwdefaults__['k'] = 5"),
    "the code of a helper": ("def g(a): return a * 2\nf = jit(lambda a: g(a))", "g.__code__ = (lambda a: a * 5).__code__"),
    "an attribute of a helper": ("def g(a): return a * g.k\ng.k = 2; f = jit(lambda a: g(a))", "g.k = 5"),
    "an attribute of a helper that is added": (
        "def g(a): return a * getattr(g, 'k', 2)\nf = jit(lambda a: g(a))", "g.k = 5",
    ),
    "a helper of a helper": (
        "def h(a): return a * 2\ndef g(a): return h(a)\nf = jit(lambda a: g(a))", "def h(a): return a * 5",
    ),
    "a decorated helper's global": ("K = 2\n@cute.jit\ndef g(a): return a * K\nf = jit(lambda a: g(a))", "K = 5"),
    "a wrapped helper's global": (
        "K = 2\ndef outer(g):\n @functools.wraps(g)\n def inner(a): return g(a)\n return inner\n"
        "@outer\ndef g(a): return a * K\nf = jit(lambda a: g(a))",
        "K = 5",
    ),
    "the argument of a partial": (
        "def g(k, a): return a * k[0]\nP = functools.partial(g, [2]); f = jit(lambda a: P(a))", "P.args[0][0] = 5",
    ),
    "a global read by a partial's function": (
        "K = 2\ndef g(x, a): return a * K\nP = functools.partial(g, 0); f = jit(lambda a: P(a))", "K = 5",
    ),
    "a global read by a function in a dict": (
        "K = 2\ndef g(a): return a * K\nD = {'g': g}; f = jit(lambda a: D['g'](a))", "K = 5",
    ),
    "a function in a dict": (
        "D = {'g': lambda a: a * 2}; f = jit(lambda a: D['g'](a))", "D['g'] = lambda a: a * 5",
    ),
    "a global read by a bound method": (
        "K = 2\nclass C:\n def m(self, a): return a * K\nm = C().m; f = jit(lambda a: m(a))", "K = 5",
    ),
    "defaults of the jit function": (
        "@cute.jit\ndef g(a: Int32, k: Constexpr = 2): return a * k\ndef f(a): return g(a)", "g.__defaults__ = (5,)",
    ),
    "defaults by name of the jit function": (
        "@cute.jit\ndef g(a: Int32, *, k: Constexpr = 2): return a * k\ndef f(a): return g(a)", "g.__kwdefaults__ = {'k': 5}",
    ),
    "a default by name of the jit function": (
        "@cute.jit\ndef g(a: Int32, *, k: Constexpr = 2): return a * k\ndef f(a): return g(a)", "g.__kwdefaults__['k'] = 5",
    ),
    "the code of the jit function": (
        "@cute.jit\ndef f(a: Int32): return a * 2\ndef g(a): return a * 5", "f.__code__ = g.__code__",
    ),
    "the code of a jit function that is inlined": (
        "@cute.jit\ndef h(a): return a * 2\ndef g(a): return a * 5\nf = jit(lambda a: h(a))", "h.__code__ = g.__code__",
    ),
    "the code under the jit function": (
        "@cute.jit\ndef f(a: Int32): return a * 2\ndef g(a): return a * 5", "f.__wrapped__.__code__ = g.__code__",
    ),
    "an attribute of the jit function": ("@cute.jit\ndef f(a: Int32): return a * f.k\nf.k = 2", "f.k = 5"),
    # values that are part of the key
    "an array as Constexpr": (
        "@cute.jit\ndef g(a: Int32, t: Constexpr): return a * int(t[0])\nA = np.array([2])\ndef f(a): return g(a, A)", "A[0] = 5",
    ),
    "a bytearray as Constexpr": (
        "@cute.jit\ndef g(a: Int32, t: Constexpr): return a * t[0]\nB = bytearray([2])\ndef f(a): return g(a, B)", "B[0] = 5",
    ),
    "a deque as Constexpr": (
        "@cute.jit\ndef g(a: Int32, t: Constexpr): return a * t[0]\nQ = collections.deque([2])\ndef f(a): return g(a, Q)",
        "Q[0] = 5",
    ),
    "a field of an object in C as Constexpr": (
        "@cute.jit\ndef g(a: Int32, t: Constexpr): return a * t.args[0]\nE = KeyError(2)\ndef f(a): return g(a, E)", "E.args = (5,)",
    ),
    "a global read by a Constexpr function": (
        "K = 2\ndef h(a): return a * K\n@cute.jit\ndef g(a: Int32, t: Constexpr): return t(a)\ndef f(a): return g(a, h)", "K = 5",
    ),
    "a global read by a partial as Constexpr": (
        "K = 2\ndef h(x, a): return a * K\n@cute.jit\ndef g(a: Int32, t: Constexpr): return t(a)\n"
        "def f(a): return g(a, functools.partial(h, 1))",
        "K = 5",
    ),
    "a method of self": (
        "class C:\n def m(self): return 2\n @cute.jit\n def run(self, a: Int32): return a * self.m()\n"
        "X = C()\ndef f(a): return X.run(a)",
        "C.m = lambda self: 5",
    ),
    "a class attribute of self in a tuple": (
        "class C: K = 2\n@cute.jit\ndef g(t): return t[0] * t[1].K\nX = C()\ndef f(a): return g((a, X))", "C.K = 5",
    ),
    "an attribute of a class as Constexpr": (
        "class C: K = 2\n@cute.jit\ndef g(a: Int32, c: Constexpr): return a * c.K\ndef f(a): return g(a, C)", "C.K = 5",
    ),
    "an attribute of a module as Constexpr": (
        "@cute.jit\ndef g(a: Int32, c: Constexpr): return a * c.K\ndef f(a): return g(a, conf)", "conf.K = 5",
    ),
    # attributes of objects that have others, which are not read
    "one of two attributes": (REST + "X = C(2); f = jit(lambda a: a * X.k)", "X.k = 5"),
    "one that a class has first": (REST + "C.k, X = 2, C(2); del X.k\nf = jit(lambda a: a * X.k)", "X.k = 5"),
    "one of two slots": (
        "class C:\n __slots__ = ('k', 'rest')\nX = C(); X.k, X.rest = 2, []\nf = jit(lambda a: a * X.k)", "X.k = 5",
    ),
    "one of an object in a list": (REST + "L = [C(1), C(2)]; f = jit(lambda a: a * L[1].k)", "L[1].k = 5"),
    "one in a closure": (
        REST + "X = C(2)\ndef make(x): return lambda: x.k\nG = [make(X)]; f = jit(lambda a: a * G[0]())", "X.k = 5",
    ),
    "one by a name that is computed": (REST + "X, N = C(2), ['k']; f = jit(lambda a: a * getattr(X, N[0]))", "X.k = 5"),
    "one by a name in a class": (
        REST + "C.__getitem__ = lambda self, name: getattr(self, name)\nX, N = C(2), ['k']; f = jit(lambda a: a * X[N[0]])",
        "X.k = 5",
    ),
    "one in a table of all": (REST + "X = C(2); f = jit(lambda a: a * next(iter(vars(X).values())))", "X.k = 5"),
    "one by a getter": (REST + "X, g = C(2), operator.attrgetter('k'); f = jit(lambda a: a * g(X))", "X.k = 5"),
    "one by getattr itself": (
        REST + "X, g = C(2), functools.partial(getattr, C(1))\nf = jit(lambda a: a * g.func(X, 'k'))", "X.k = 5",
    ),
    "one in a formatted text": (REST + "X = C(2); f = jit(lambda a: a * int('{0.k}'.format(X)))", "X.k = 5"),
    "one in the state of an object": (REST + "X = C(2); f = jit(lambda a: a * X.__reduce_ex__(2)[2]['k'])", "X.k = 5"),
    "one in a copy, by the copy's class": (
        REST + "import copy\nC.__copy__ = lambda self: self.k\nX = C(2); f = jit(lambda a: a * copy.copy(X))", "X.k = 5",
    ),
    "one that a function of the library reads": (
        REST + "import fractions, numbers\nnumbers.Rational.register(C)\nC.denominator = 1\nX = C(1); X.numerator = 2\n"
        "f = jit(lambda a: a * int(fractions.Fraction(X)))",
        "X.numerator = 5",
    ),
    "one that Kiln's code reads": (
        REST + "C.dtype, C.shape, C.item = int, (), lambda self: self.k\nX = C(2); f = jit(lambda a: a * Int32(X))", "X.k = 5",
    ),
    "one that Python's code reads": (
        REST + "C.keys = lambda self: [self.k]\nC.__getitem__ = lambda self, x: x\n"
        "X = C(2); f = jit(lambda a: a * max(dict(X)))",
        "X.k = 5",
    ),
    "one that a property reads": (
        REST + "C.twice = property(lambda self: self.rest[0])\nX = C(1); X.rest.append(2); f = jit(lambda a: a * X.twice)",
        "X.rest[0] = 5",
    ),
    "one that a descriptor reads": (
        REST + "class D:\n def __get__(self, x, kind): return x.rest[0]\nC.twice = D()\n"
        "X = C(1); X.rest.append(2); f = jit(lambda a: a * X.twice)",
        "X.rest[0] = 5",
    ),
    "one that a special method reads": (
        REST + "C.__len__ = lambda self: self.rest[0]\nX = C(1); X.rest.append(2); f = jit(lambda a: a * len(X))",
        "X.rest[0] = 5",
    ),
    "one that a method of a base reads": (
        REST + "class B: get = lambda self: self.rest[0]\nclass E(C, B): pass\n"
        "X = E(1); X.rest.append(2); f = jit(lambda a: a * X.get())",
        "X.rest[0] = 5",
    ),
    "one of two fields of a dataclass": (
        "@dataclasses.dataclass(repr=False, eq=False)\nclass D: k: int; rest: int = 1\n"
        "X = D(2); f = jit(lambda a: a * dataclasses.astuple(X)[0])",
        "X.k = 5",
    ),
    "which of two objects it is": (
        REST + "P, Q = C(1), C(1)\nP.name, Q.name = 'p', 'q'\nL = [P, Q]; f = jit(lambda a: a * (2 if L[0] is P else 5))",
        "L.reverse()",
    ),
    "a method that another one calls": (
        REST + "C.low = lambda self: 2\nC.high = lambda self: self.low()\nX = C(1); f = jit(lambda a: a * X.high())",
        "C.low = lambda self: 5",
    ),
    "a method beside one that is not called": (
        REST + "C.low = lambda self: 2\nC.other = lambda self: self.rest\nX = C(1); f = jit(lambda a: a * X.low())",
        "X.low = lambda: 5",
    ),
}  # fmt: skip


@pytest.fixture
def module(tmp_path):
    """Makes a module of a text."""
    made = []

    def make(text: str):
        path = tmp_path / "program.py"
        path.write_text(
            HEAD + "def jit(g): g.__annotations__['a'] = Int32; return cute.jit(g)\n" + textwrap.dedent(text)
        )
        linecache.checkcache(str(path))
        spec = importlib.util.spec_from_file_location(f"kiln_test_program_{len(made)}", path)
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        made.append(found)
        return found

    yield make
    for name in ("kiln_test_conf", "kiln_test_conf.sub"):
        sys.modules.pop(name, None)


@pytest.mark.quick(60)
@pytest.mark.parametrize("case", CASES)
def test_a_change_is_seen(case, module, monkeypatch):
    monkeypatch.delenv("KILN_TEST", raising=False)
    monkeypatch.setattr("builtins.kiln_test", 2, raising=False)
    text, change = CASES[case]
    program = module(text)
    for a in range(1, 7):
        assert program.f(a) == 2 * a
    exec(change, vars(program))
    assert [program.f(a) for a in range(1, 7)] == [5, 10, 15, 20, 25, 30]


def test_what_is_changed_and_changed_back_is_not_traced_again(module, capsys):
    program = module("class C: K = 2\nCOUNT = 0\n@cute.jit\ndef f(a: Int32):\n print('tracing')\n return a * C.K")
    for a in range(40):
        assert program.f(a) == 2 * a
        program.C.unrelated = a  # a class has one version for all its attributes
        program.COUNT += 1
    program.C.K = 2
    assert program.f(1) == 2
    assert capsys.readouterr().out == "tracing\n"


def test_functions_that_read_nothing_unusual_are_checked_by_native_code_alone(module):
    program = module(
        "K = 2\nclass C:\n SIZE = 1\n def m(self, a): return a * self.SIZE\n"
        "def helper(a, k=1, *, n=1): return C().m(a) * K * k * n\nf = jit(lambda a: helper(a))"
    )
    assert program.f(1) == 2
    from kiln.base_dsl import guards
    from kiln.base_dsl.dependencies import Dependencies

    assert all(kind != guards.IS_TRUE for kind, *_ in Dependencies(program.f.function).guards())


def test_a_class_that_changes_all_the_time_does_not_gather_plans(module):
    program = module("class C: K = 2\nf = jit(lambda a: a * C.K)")
    for a in range(60):
        assert program.f(a) == 2 * a
        program.C.count = a
    (compiled,) = program.f._specializations.codes()
    assert compiled.learned.count <= 16


def test_what_is_not_read_does_not_count(module, capsys):
    """A log, a counter, and the methods that write them, beside what is read."""
    program = module(
        """
        class Trainer:
            def __init__(self):
                self.k, self.loss_record, self.epoch_number, self.parts = 2, [], 0, [Part(1), Part(0)]
            def log_losses(self):
                self.epoch_number += 1
                self.loss_record.append(self.epoch_number)
                self.parts[0].history_record = self.loss_record
        class Part:
            def __init__(self, k): self.k = k
        T = Trainer()
        @cute.jit
        def f(a: Int32):
            print("tracing")
            return a * T.k * T.parts[0].k
        """
    )
    for a in range(10):
        assert program.f(a) == 2 * a
        program.T.log_losses()
    assert capsys.readouterr().out == "tracing\n"
    program.T.parts[0].k = 3
    assert program.f(1) == 6
    parts, before = program.T.parts, program.T.parts[0]
    parts[0] = program.Part(3)  # another object: that it is the same could have been asked
    parts[0].history_record = before.history_record
    assert program.f(1) == 6
    assert capsys.readouterr().out == "tracing\n"
    program.T.parts[0].k = 4
    assert program.f(1) == 8


def test_retrace(module, tmp_path):
    program = module(
        "import pathlib\nPATH = pathlib.Path(__file__).with_name('factor')\nf = jit(lambda a: a * int(PATH.read_text()))"
    )
    (tmp_path / "factor").write_text("2")
    assert [program.f(a) for a in range(6)] == [0, 2, 4, 6, 8, 10]
    (tmp_path / "factor").write_text("5")
    assert program.f(1) == 2  # what untraced code reads is not seen
    program.f.retrace()
    assert [program.f(a) for a in range(6)] == [0, 5, 10, 15, 20, 25]


@pytest.mark.parametrize("early", [False, True])
def test_check_stale_shows_the_first_difference(module, tmp_path, monkeypatch, early):
    program = module(
        """
        import pathlib
        PATH = pathlib.Path(__file__).with_name("factor")
        @cute.jit
        def f(a: Int32, x: cute.Tensor):
            x[0] = a
            if a > 3:
                a = a * int(PATH.read_text())
            return a
        """
    )
    x = program.np.zeros(1, program.np.int32)
    (tmp_path / "factor").write_text("2")
    if early:
        for _ in range(6):
            program.f(4, x)
    monkeypatch.setenv("KILN_CHECK_STALE", "1")
    for _ in range(6):
        assert program.f(4, x) == 8
    (tmp_path / "factor").write_text("5")
    with pytest.raises(kiln.DSLRuntimeError, match="a trace gives something else now") as failure:
        program.f(4, x)
    line = next(n for n, text in enumerate(open(program.__file__), 1) if "PATH.read_text" in text)
    assert f"program.py:{line}" in str(failure.value)
    assert "then: %c2_i32" in str(failure.value) and "now:  %c5_i32" in str(failure.value)
    assert "f.retrace()" in str(failure.value)
    program.f.retrace()
    assert program.f(4, x) == 20
    monkeypatch.delenv("KILN_CHECK_STALE")
    assert program.f(4, x) == 20


def test_the_architecture_may_change_between_calls(module, monkeypatch):
    program = module("from kiln.hardware import current\nf = jit(lambda a: a * int(current.architecture().major))")
    for name, major in (("sm_80", 8), ("sm_90a", 9), ("sm_80", 8), ("sm_100a", 10)):
        monkeypatch.setenv("CUTE_DSL_ARCH", name)
        assert [program.f(a) for a in range(5)] == [major * a for a in range(5)]


def test_a_change_by_another_thread_while_tracing(module):
    """What is noted is what was there when the trace ended, not when compiling did."""
    program = module("K = 2; f = jit(lambda a: a * K)")
    compile_module = program.f.dsl.compile_module

    def changing(*args, **kwargs):
        program.K = 5
        return compile_module(*args, **kwargs)

    program.f.dsl.compile_module = changing
    try:
        assert program.f(1) == 2
    finally:
        del program.f.dsl.compile_module
    assert program.f(1) == 5


def test_a_container_that_another_thread_is_changing_has_changed(module, monkeypatch):
    from kiln.base_dsl import dependencies

    program = module("L = [2]; f = jit(lambda a: a * L[0])")
    found = dependencies.Dependencies(program.f.function)
    assert found.unchanged()

    def changing(*_):
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(dependencies, "static_key", changing)
    assert not found.unchanged()


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages", "project"])
def test_packages_outside_this_environment_are_installed_too(folder, tmp_path, monkeypatch):
    name = f"kiln_test_{folder[:4]}"
    (tmp_path / folder).mkdir()
    (tmp_path / folder / f"{name}.py").write_text("class C: pass")
    monkeypatch.syspath_prepend(tmp_path / folder)
    try:
        assert is_library_class(importlib.import_module(name).C) == (folder != "project")
    finally:
        del sys.modules[name]


def test_the_bindings_are_installed_wherever_they_are(monkeypatch):
    """The module of a dialect runs when a kernel first uses it, in a branch perhaps: nothing of the user's changes then."""
    monkeypatch.setattr(dependencies, "_FOLDERS_OF_PACKAGES", ())
    monkeypatch.setattr(dependencies, "_STANDARD", ("stdlib",))
    monkeypatch.setattr(dependencies, "_PACKAGES", ("stdlib",))
    for module, installed in (("torch_mlir.ir", True), ("llvmlite.binding", True), ("ml_dtypes", False)):
        assert dependencies.is_library(importlib.util.find_spec(module).origin) == installed
