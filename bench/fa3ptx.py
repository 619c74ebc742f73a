"""fa3ptx.py - include/fa3ptx.h for Python's ctypes: pointers and strides in, status out."""
import ctypes as C

BF16, FP16, E4M3 = 1, 2, 3
CAUSAL = 1
DETERMINISTIC = 1 << 1


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("stride_batch", C.c_int64), ("stride_seq", C.c_int64),
                ("stride_head", C.c_int64), ("dtype", C.c_int32), ("reserved", C.c_int32)]


def args_type(tensors):
    names = "batch seqlen_q seqlen_k heads_q heads_kv head_dim head_dim_v".split()

    class Args(C.Structure):
        _fields_ = ([("struct_size", C.c_size_t)] + [(t, Tensor) for t in tensors.split()] +
                    [("lse", C.c_void_p)] + [(n, C.c_int32) for n in names] +
                    [("softmax_scale", C.c_float), ("mask", C.c_int32), ("flags", C.c_uint32),
                     ("workspace", C.c_void_p), ("workspace_size", C.c_size_t)])
    return Args


Forward = args_type("q k v o")
Backward = args_type("q k v o dout dq dk dv")


class PlanInfo(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("kernel", C.c_char * 64), ("tile_m", C.c_int32),
                ("tile_n", C.c_int32), ("stages", C.c_int32), ("threads", C.c_int32),
                ("grid", C.c_int32 * 3), ("cluster", C.c_int32), ("launches", C.c_int32),
                ("shared_memory", C.c_size_t), ("workspace", C.c_size_t), ("text", C.c_char * 512)]


class Library:
    def __init__(self, path):
        self.lib = C.CDLL(path)
        self.lib.fa3ptx_last_error.restype = C.c_char_p
        for name in ("forward", "backward"):
            getattr(self.lib, "fa3ptx_" + name).argtypes = [C.c_void_p, C.c_void_p]

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.fa3ptx_last_error().decode())

    def workspace_size(self, name, args):
        size = C.c_size_t()
        self.check(getattr(self.lib, f"fa3ptx_{name}_workspace_size")(C.byref(args), C.byref(size)))
        return size.value

    def kernel(self, name, args):
        info = PlanInfo(struct_size=C.sizeof(PlanInfo))
        self.check(getattr(self.lib, "fa3ptx_explain_" + name)(C.byref(args), C.byref(info)))
        return info.kernel.decode()
