"""Tensors of several frameworks by what the native module needs of them: address, shape, strides, type, device, stream."""

import ctypes
import sys
import threading

try:
    import torch
except ImportError:
    torch = None


class Torch:
    """PyTorch's tensors."""

    def __init__(self, torch):
        self.torch = torch

    def check_tensor(self, name, tensor):
        if not isinstance(tensor, self.torch.Tensor):
            raise TypeError(f"{name} is {type(tensor).__name__} beside PyTorch's tensors: give all tensors of one framework")
        if tensor.is_nested or tensor.layout != self.torch.strided:
            kind = "nested" if tensor.is_nested else str(tensor.layout)[6:]
            raise TypeError(f"a {kind} tensor is not supported: give one that lies in memory by strides, as its to_dense() or values()")

    def place(self, tensor):
        device = tensor.device
        return "cpu" if device.type == "cpu" else (device.type, device.index)

    def describe(self, tensor):
        self.check_tensor("a tensor", tensor)
        place = self.place(tensor)
        if self.torch.compiler.is_compiling():
            # What is traced has no memory yet.
            return 0, tuple(tensor.shape), tensor.stride(), str(tensor.dtype)[6:], place
        if tensor.is_neg():
            raise ValueError("a tensor that is negated when it is read is not supported here: give its resolve_neg()")
        address = tensor.data_ptr()
        if address == 0 and tensor.numel() and tensor.device.type != "meta":
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has no memory: its storage was freed")
        return address, tuple(tensor.shape), tensor.stride(), str(tensor.dtype)[6:], place

    def empty(self, like, shape, dtype=None):
        dtype = like.dtype if dtype is None else getattr(self.torch, dtype)
        return self.torch.empty(shape, dtype=dtype, device=like.device)

    def full(self, like, shape, value, dtype):
        return self.torch.full(shape, value, dtype=getattr(self.torch, dtype), device=like.device)

    def contiguous(self, tensor):
        return tensor.contiguous()

    def compact(self, tensor, like):
        """In the type of another, contiguous, with size 1 along dimensions, but for the last, that it only repeats."""
        self.check_tensor("a tensor", tensor)
        return _once(tensor, tensor.stride()).to(like.dtype).contiguous()

    def cast(self, tensor, dtype):
        return tensor.to(getattr(self.torch, dtype))

    def arange(self, like, count):
        return self.torch.arange(count, device=like.device)

    def octets(self, bits):
        """The sums of the last dimension, as bytes."""
        return bits.sum(-1, dtype=self.torch.uint8)

    def dtype(self, name):
        return getattr(self.torch, name)

    def stream(self, place):
        return 0 if place == "cpu" else self.torch._C._cuda_getCurrentRawStream(place[1])

    def memory(self, place, size):
        """Zeros that outlast any graph: from a thread of its own, so that they come from no graph's pool of memory, and on a stream of its
        own, so that no capture has their zeroing in it."""

        def zeros():
            device = self.torch.device(*place)
            _allow_allocations_in_captures()
            stream = self.torch.cuda.Stream(device)
            with self.torch.cuda.device(device), self.torch.cuda.stream(stream):
                found.append(self.torch.zeros(size, dtype=self.torch.uint8, device=device))
            stream.synchronize()

        found, errors = [], []
        thread = threading.Thread(target=_catching(zeros, errors))
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return found[0]

    def device_type(self, tensor):
        return tensor.device.type

    def filled_up(self, tensor, count):
        """With so many zeros behind each row."""
        return self.torch.nn.functional.pad(tensor, (0, count)) if count else tensor

    def aligned(self, tensor):
        """As kernels read it: contiguous, from a multiple of 16 bytes on."""
        tensor = tensor.contiguous()
        return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()

    def check_written(self, name, tensor):
        pass

    def wants_gradients(self, tensors):
        return self.torch.is_grad_enabled() and True in [getattr(t, "requires_grad", False) for t in tensors]

    def check_gradients(self, tensors, what):
        """Refuses tensors that require gradients, or have tangents, of something that has none."""
        self.check_tangents(tensors)
        if self.wants_gradients(tensors):
            raise NotImplementedError(
                f"requires_grad is not supported: {what} no gradient; call it under torch.no_grad(), or detach the tensors"
            )

    def check_tangents(self, tensors):
        """Refuses tensors with a tangent (forward-mode differentiation), which a call would lose without a word. Under torch.func.jvp operators
        refuse them, and PyTorch's arithmetic has them."""
        mode = self.torch.autograd.forward_ad
        if self.torch.compiler.is_compiling() or mode._current_level < 0 or self.torch._C._are_functorch_transforms_active():
            return
        if any(tensor is not None and mode.unpack_dual(tensor).tangent is not None for tensor in tensors):
            raise NotImplementedError("a tangent is not supported: there is no forward-mode derivative, only backward()")

    def math(self):
        return self.torch

    def result(self, tensor):
        return tensor


def _once(tensor, strides):
    """The first along dimensions, but for the last, whose elements are one in memory."""
    return tensor[tuple(slice(0, 1) if stride == 0 and size > 1 else slice(None) for size, stride in zip(tensor.shape[:-1], strides))]


def _catching(function, errors):
    def called():
        try:
            function()
        except Exception as error:
            errors.append(error)

    return called


def _allow_allocations_in_captures():
    """Lets this thread allocate while another captures a graph, which forbids it to all threads that do not say otherwise."""
    relaxed = ctypes.c_int(2)
    # The driver, which PyTorch has loaded.
    ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(relaxed))


class NumPy:
    """NumPy's arrays, bfloat16 by the package ml_dtypes."""

    def __init__(self, numpy):
        self.numpy = numpy

    def check_tensor(self, name, array):
        if not isinstance(array, self.numpy.ndarray):
            raise TypeError(f"{name} is {type(array).__name__} beside NumPy's arrays: give all tensors of one framework")
        if hasattr(array, "mask"):
            raise TypeError("a masked array is not supported, as what it hides would count: give its filled()")

    def check_written(self, name, array):
        """Refuses what must not be written."""
        if not array.flags.writeable:
            raise ValueError(f"{name} is read-only, and new keys and values are written into it")

    def describe(self, array):
        self.check_tensor("a tensor", array)
        size = array.dtype.itemsize
        if not (array.dtype.isnative and array.flags.aligned):
            kind = "unaligned" if array.dtype.isnative else "of the other byte order"
            raise ValueError(f"an array {kind} is not supported: give a copy, as astype({array.dtype.newbyteorder('=').name!r}) makes")
        if any(stride % size for stride in array.strides):
            raise ValueError(f"strides {array.strides} are not multiples of the element's {size} bytes")
        strides = tuple(stride // size for stride in array.strides)
        return array.__array_interface__["data"][0], array.shape, strides, array.dtype.name, "cpu"

    def empty(self, like, shape, dtype=None):
        return self.numpy.empty(shape, like.dtype if dtype is None else dtype)

    def full(self, like, shape, value, dtype):
        return self.numpy.full(shape, value, dtype)

    def contiguous(self, array):
        return self.numpy.ascontiguousarray(array)

    def device_type(self, array):
        return "cpu"

    def filled_up(self, array, count):
        return self.numpy.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, count)])

    def aligned(self, array):
        array = self.contiguous(array)
        if array.ctypes.data % 16 == 0:
            return array
        room = self.numpy.empty(array.nbytes + 16, "uint8")
        behind = -room.ctypes.data % 16
        copy = room[behind : behind + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy

    def compact(self, array, like):
        return self.contiguous(_once(array, array.strides).astype(like.dtype, copy=False))

    def cast(self, array, dtype):
        return array.astype(dtype)

    def arange(self, like, count):
        return self.numpy.arange(count)

    def octets(self, bits):
        return bits.sum(-1, dtype="uint8")

    def dtype(self, name):
        return name

    def stream(self, place):
        return 0

    def check_gradients(self, arrays, what):
        pass

    def place(self, array):
        return "cpu"

    def math(self):
        return self.numpy

    def result(self, array):
        return array


class Foreign:
    """Tensors of other frameworks, through DLPack into PyTorch's or NumPy's and back. The framework orders its stream before ours."""

    def __init__(self, inner, back):
        self.inner, self.back = inner, back

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def result(self, tensor):
        return self.back(tensor)


def framework_of(tensor):
    """The framework of a tensor, and what turns its tensors into those that this module works on."""
    # torch.compile traces this: a look into sys.modules would make it walk through all of them, which may grow meanwhile.
    if torch is not None and isinstance(tensor, torch.Tensor):
        return Torch(torch), _same
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        return NumPy(numpy), _same
    if hasattr(tensor, "__dlpack__"):
        back = _from_dlpack_of(type(tensor).__module__.split(".")[0])
        if torch is None:
            import numpy

            return Foreign(NumPy(numpy), back), lambda given: given if isinstance(given, numpy.ndarray) else numpy.from_dlpack(given)
        return Foreign(Torch(torch), back), lambda given: given if isinstance(given, torch.Tensor) else torch.from_dlpack(given)
    raise TypeError(f"{type(tensor).__name__} is no tensor: give PyTorch's, NumPy's or one with __dlpack__")


def _same(tensor):
    return tensor


def _from_dlpack_of(package):
    """What takes a DLPack tensor into a framework: cupy.from_dlpack, jax.dlpack.from_dlpack."""
    module = sys.modules.get(package if package != "jaxlib" else "jax")
    for holder in (module, getattr(module, "dlpack", None), getattr(module, "numpy", None)):
        if hasattr(holder, "from_dlpack"):
            return holder.from_dlpack
    raise TypeError(f"{package} has no from_dlpack to return a result by")
