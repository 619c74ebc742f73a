#!/usr/bin/env python3
"""test_ctypes.py - the C ABI from Python's ctypes: forward and backward, bad input in words.

The inputs have answers that can be written down; see abi_c.c.  The environment variable
FA3PTX_LIBRARY holds the path of libfa3ptx.so.
"""
import ctypes as C
import math
import os
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
from fa3ptx import Backward, Forward, Tensor  # noqa: E402

B, SQ, SK, HQ, HK, D = 1, 17, 23, 4, 2, 32
BF16, CAUSAL, OK, INVALID_ARGUMENT = 1, 1, 0, 1


class Driver:
    """As much of the CUDA driver as memory needs; raises OSError without a usable device."""

    def __init__(self):
        self.cu = C.CDLL(os.environ.get("FA3PTX_LIBCUDA") or "libcuda.so.1")
        device, context, major = C.c_int(), C.c_void_p(), C.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", C.byref(device), 0)
        self.call("cuDeviceGetAttribute", C.byref(major), 75, device)  # compute capability, major
        if major.value != 9:
            raise OSError("the device is not of compute capability 9.0")
        self.call("cuDevicePrimaryCtxRetain", C.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *args):
        if getattr(self.cu, name)(*args) != 0:
            raise OSError(name + " failed: no usable CUDA device")

    def put(self, data):
        address = C.c_uint64()
        self.call("cuMemAlloc_v2", C.byref(address), C.c_size_t(max(len(data), 1)))
        self.call("cuMemcpyHtoD_v2", address, data, C.c_size_t(len(data)))
        return address.value

    def get(self, address, size):
        data = C.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, C.c_uint64(address), C.c_size_t(size))
        return data.raw


def bf16(values):  # of numbers that bf16 holds exactly
    return b"".join(struct.pack("<f", x)[2:] for x in values)


def floats(data):
    return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]


def bshd(address, seqlen, heads):
    return Tensor(address, seqlen * heads * D, heads * D, D, BF16, 0)


def fill_shape(a):
    a.struct_size = C.sizeof(a)
    a.batch, a.seqlen_q, a.seqlen_k, a.heads_q, a.heads_kv, a.head_dim = B, SQ, SK, HQ, HK, D
    a.mask = CAUSAL
    return a


def near(got, want):
    return abs(got - want) <= 0.005 * (1 + abs(want))


class Checks:
    passed = failed = 0

    def __call__(self, good, what):
        if good:
            self.passed += 1
        else:
            self.failed += 1
            print("FAILED:", what)


def check_calls(lib, driver, check):
    nan_q, nan_k = b"\xff" * (2 * B * SQ * HQ * D), b"\xff" * (2 * B * SK * HK * D)
    q = driver.put(bf16(i % 7 for i in range(B * SQ * HQ * D)))
    k = driver.put(bytes(len(nan_k)))
    v = driver.put(bf16(i // D // HK % SK for i in range(B * SK * HK * D)))
    o, dq, dk, dv = map(driver.put, (nan_q, nan_q, nan_k, nan_k))
    lse = driver.put(b"\xff" * (4 * B * HQ * SQ))

    a = fill_shape(Forward(q=bshd(q, SQ, HQ), k=bshd(k, SK, HK), v=bshd(v, SK, HK),
                           o=bshd(o, SQ, HQ), lse=lse))
    check(lib.fa3ptx_forward(C.byref(a), None) == OK, "forward")
    seen = [s + 1 + SK - SQ for s in range(SQ)]
    got = floats(driver.get(o, len(nan_q)))
    check(all(near(x, (seen[i // D // HQ % SQ] - 1) / 2) for i, x in enumerate(got)),
          "O is the mean of the visible V")
    got = struct.unpack("<%df" % (B * HQ * SQ), driver.get(lse, 4 * B * HQ * SQ))
    check(all(abs(x - math.log(seen[i % SQ])) <= 1e-4 for i, x in enumerate(got)),
          "LSE is the logarithm of the number of visible keys")

    dout = driver.put(bf16([1.0] * (B * SQ * HQ * D)))
    b = fill_shape(Backward(q=a.q, k=a.k, v=a.v, o=a.o, dout=bshd(dout, SQ, HQ),
                            dq=bshd(dq, SQ, HQ), dk=bshd(dk, SK, HK), dv=bshd(dv, SK, HK), lse=lse))
    size = C.c_size_t()
    check(lib.fa3ptx_backward_workspace_size(C.byref(b), C.byref(size)) == OK, "workspace size")
    b.workspace, b.workspace_size = driver.put(bytes(size.value)), size.value
    check(lib.fa3ptx_backward(C.byref(b), None) == OK, "backward")
    got = floats(driver.get(dv, len(nan_k)))
    want = [sum(HQ / HK / n for n in seen if j < n) for j in range(SK)]
    check(all(near(x, want[i // D // HK % SK]) for i, x in enumerate(got)),
          "dV is the sum of the weights")
    check(all(x == 0 for x in floats(driver.get(dq, len(nan_q)))), "K = 0, so dQ = 0")


def main():
    check = Checks()
    lib = C.CDLL(os.environ["FA3PTX_LIBRARY"])
    lib.fa3ptx_last_error.restype = C.c_char_p
    bad = fill_shape(Forward())
    bad.head_dim = 12
    check(lib.fa3ptx_forward(C.byref(bad), None) == INVALID_ARGUMENT, "head_dim 12 is rejected")
    check(b"head_dim = 12" in lib.fa3ptx_last_error(), "the sentence names it")
    skipped = 0
    try:
        driver = Driver()
    except OSError as reason:
        skipped = 1
        print("skipped 1:", reason)
    else:
        check_calls(lib, driver, check)
    print("%d passed, %d failed, %d skipped" % (check.passed, check.failed, skipped))
    return check.failed != 0


if __name__ == "__main__":
    sys.exit(main())
