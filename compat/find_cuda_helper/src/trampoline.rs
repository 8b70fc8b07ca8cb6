//! The `cu…` symbols: each jumps through a slot that first leads to the resolver and, from the second call on, straight into
//! the driver. Arguments stay where the caller put them, so no signature is needed here.

use crate::calls::for_each_driver_call;
use crate::driver::driver;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

const CUDA_SUCCESS: c_int = 0;
const CUDA_ERROR_NOT_INITIALIZED: c_int = 3;
const CUDA_ERROR_NOT_FOUND: c_int = 500;

/// What the assembly lays out for each call.
#[repr(C)]
struct Slot {
    target: AtomicPtr<c_void>,
    name: *const c_char,
}

/// The address that a call goes to, now and from now on.
extern "C" fn resolve(slot: &Slot) -> *const c_void {
    // SAFETY: the assembly below points `name` to a string that ends in NUL and never changes.
    let name = unsafe { CStr::from_ptr(slot.name) };
    let target = match driver() {
        Ok(driver) => driver.symbol(name).map_or(not_in_driver as *mut c_void, |call| call.as_ptr()),
        Err(_) if name == c"cuGetErrorString" || name == c"cuGetErrorName" => describe_error as *mut c_void,
        Err(_) => no_driver as *mut c_void,
    };
    // Relaxed: the address is all that is passed on, and every thread that resolves finds the same one.
    slot.target.store(target, Ordering::Relaxed);
    target
}

/// Stands in for every call where there is no driver. The caller cleans up its arguments, so taking none is right.
extern "C" fn no_driver() -> c_int {
    CUDA_ERROR_NOT_INITIALIZED
}

/// Stands in for a call that the driver is too old, or too new, to have.
extern "C" fn not_in_driver() -> c_int {
    CUDA_ERROR_NOT_FOUND
}

/// `cuGetErrorString` and `cuGetErrorName` where there is no driver: `cust` prints its errors through them, and panics where
/// they fail.
unsafe extern "C" fn describe_error(code: c_uint, text: *mut *const c_char) -> c_int {
    let words = if code as c_int == CUDA_ERROR_NOT_INITIALIZED {
        c"no CUDA driver: libcuda.so.1 could not be opened"
    } else {
        c"CUDA error (no driver to describe it)"
    };
    // SAFETY: by the call's contract, `text` is valid for a write.
    unsafe { text.write(words.as_ptr()) };
    CUDA_SUCCESS
}

/// Keeps the object file with the symbols in the link, in whatever order the linker sees the libraries.
#[used]
static LINKED: extern "C" fn(&Slot) -> *const c_void = resolve;

// The slow path: r11 holds the slot. Saves every register that may carry an argument (System V AMD64 ABI, 3.2.3; al counts
// vector arguments), asks `resolve` for the address, restores them and jumps there.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.ferroflash_cuda_resolve,\"ax\",@progbits",
    ".hidden ferroflash_cuda_resolve",
    ".globl ferroflash_cuda_resolve",
    ".type ferroflash_cuda_resolve,@function",
    "ferroflash_cuda_resolve:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "and rsp, -16",
    "sub rsp, 192",
    "mov [rsp], rdi",
    "mov [rsp + 8], rsi",
    "mov [rsp + 16], rdx",
    "mov [rsp + 24], rcx",
    "mov [rsp + 32], r8",
    "mov [rsp + 40], r9",
    "mov [rsp + 48], rax",
    "movaps [rsp + 64], xmm0",
    "movaps [rsp + 80], xmm1",
    "movaps [rsp + 96], xmm2",
    "movaps [rsp + 112], xmm3",
    "movaps [rsp + 128], xmm4",
    "movaps [rsp + 144], xmm5",
    "movaps [rsp + 160], xmm6",
    "movaps [rsp + 176], xmm7",
    "mov rdi, r11",
    "call {resolve}",
    "mov r11, rax",
    "mov rdi, [rsp]",
    "mov rsi, [rsp + 8]",
    "mov rdx, [rsp + 16]",
    "mov rcx, [rsp + 24]",
    "mov r8, [rsp + 32]",
    "mov r9, [rsp + 40]",
    "mov rax, [rsp + 48]",
    "movaps xmm0, [rsp + 64]",
    "movaps xmm1, [rsp + 80]",
    "movaps xmm2, [rsp + 96]",
    "movaps xmm3, [rsp + 112]",
    "movaps xmm4, [rsp + 128]",
    "movaps xmm5, [rsp + 144]",
    "movaps xmm6, [rsp + 160]",
    "movaps xmm7, [rsp + 176]",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "jmp r11",
    ".cfi_endproc",
    ".size ferroflash_cuda_resolve, . - ferroflash_cuda_resolve",
    ".popsection",
    resolve = sym resolve,
);

// As above under AAPCS64 (6.4.2): x16 holds the slot, x0-x7 and q0-q7 carry arguments, x8 the result's address.
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text.ferroflash_cuda_resolve,\"ax\",@progbits",
    ".hidden ferroflash_cuda_resolve",
    ".globl ferroflash_cuda_resolve",
    ".type ferroflash_cuda_resolve,@function",
    "ferroflash_cuda_resolve:",
    ".cfi_startproc",
    "stp x29, x30, [sp, #-224]!",
    ".cfi_def_cfa_offset 224",
    ".cfi_offset w29, -224",
    ".cfi_offset w30, -216",
    "mov x29, sp",
    "stp x0, x1, [sp, #16]",
    "stp x2, x3, [sp, #32]",
    "stp x4, x5, [sp, #48]",
    "stp x6, x7, [sp, #64]",
    "str x8, [sp, #80]",
    "stp q0, q1, [sp, #96]",
    "stp q2, q3, [sp, #128]",
    "stp q4, q5, [sp, #160]",
    "stp q6, q7, [sp, #192]",
    "mov x0, x16",
    "bl {resolve}",
    "mov x16, x0",
    "ldp x0, x1, [sp, #16]",
    "ldp x2, x3, [sp, #32]",
    "ldp x4, x5, [sp, #48]",
    "ldp x6, x7, [sp, #64]",
    "ldr x8, [sp, #80]",
    "ldp q0, q1, [sp, #96]",
    "ldp q2, q3, [sp, #128]",
    "ldp q4, q5, [sp, #160]",
    "ldp q6, q7, [sp, #192]",
    "ldp x29, x30, [sp], #224",
    ".cfi_def_cfa_offset 0",
    "br x16",
    ".cfi_endproc",
    ".size ferroflash_cuda_resolve, . - ferroflash_cuda_resolve",
    ".popsection",
    resolve = sym resolve,
);

/// The slot of one call (its target and its name) in writable data.
macro_rules! slot {
    ($name:ident) => {
        concat!(
            ".pushsection .rodata.ferroflash_cuda,\"a\",@progbits\n",
            ".Lferroflash_name_",
            stringify!($name),
            ": .asciz \"",
            stringify!($name),
            "\"\n",
            ".popsection\n",
            ".pushsection .data.ferroflash_cuda,\"aw\",@progbits\n",
            ".p2align 3\n",
            ".Lferroflash_slot_",
            stringify!($name),
            ":\n",
            ".quad ferroflash_cuda_resolve\n",
            ".quad .Lferroflash_name_",
            stringify!($name),
            "\n",
            ".popsection\n",
        )
    };
}

/// What a caller of one driver call jumps to. Hidden, so that libcuda never finds these in place of its own calls.
macro_rules! stub {
    ($name:ident, $($instruction:expr),+) => {
        concat!(
            ".pushsection .text.ferroflash_cuda,\"ax\",@progbits\n",
            ".p2align 4\n",
            ".globl ", stringify!($name), "\n",
            ".hidden ", stringify!($name), "\n",
            ".type ", stringify!($name), ",@function\n",
            stringify!($name), ":\n",
            $($instruction, "\n",)+
            ".size ", stringify!($name), ", . - ", stringify!($name), "\n",
            ".popsection\n",
        )
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! define_calls {
    ($($name:ident)*) => { $(
        std::arch::global_asm!(
            slot!($name),
            stub!($name,
                concat!("lea r11, [rip + .Lferroflash_slot_", stringify!($name), "]"),
                "jmp qword ptr [r11]"
            ),
        );
    )* };
}

#[cfg(target_arch = "aarch64")]
macro_rules! define_calls {
    ($($name:ident)*) => { $(
        std::arch::global_asm!(
            slot!($name),
            stub!($name,
                concat!("adrp x16, .Lferroflash_slot_", stringify!($name)),
                concat!("add x16, x16, :lo12:.Lferroflash_slot_", stringify!($name)),
                "ldr x17, [x16]",
                "br x17"
            ),
        );
    )* };
}

for_each_driver_call!(define_calls);
