//! The copies of x86-64, in assembly, so that every instruction that may fault is known.
//!
//! All are leaf functions that leave the stack as it is: wherever one of them faults, the return
//! address is on top of the stack, and the landing, which returns 1, may be gone to at once. They
//! return 0 otherwise.

use std::arch::global_asm;

// From 129 bytes on, the first and the last vectors of the source are loaded before anything is
// stored, the loop in between stores aligned vectors, and the first vectors are stored at last. That
// serves overlapping ranges in the direction that suits them, and any length.
global_asm!(
    r#"
    .macro ironverbs_upward vec, width, load, store
    \load   \vec\()4, [rsi]
    \load   \vec\()5, [rsi + rdx - \width]
    \load   \vec\()6, [rsi + rdx - 2 * \width]
    \load   \vec\()7, [rsi + rdx - 3 * \width]
    \load   \vec\()8, [rsi + rdx - 4 * \width]
    mov     r8, rdi
    lea     r9, [rdi + rdx]
    lea     r10, [r9 - 4 * \width]
    mov     rcx, rdi
    or      rcx, \width - 1
    inc     rcx
    mov     rax, rcx
    sub     rax, rdi
    add     rsi, rax
    mov     rdi, rcx
    cmp     rdi, r10
    jae     3f
    .p2align 5
2:
    \load   \vec\()0, [rsi]
    \load   \vec\()1, [rsi + \width]
    \load   \vec\()2, [rsi + 2 * \width]
    \load   \vec\()3, [rsi + 3 * \width]
    add     rsi, 4 * \width
    \store  [rdi], \vec\()0
    \store  [rdi + \width], \vec\()1
    \store  [rdi + 2 * \width], \vec\()2
    \store  [rdi + 3 * \width], \vec\()3
    add     rdi, 4 * \width
    cmp     rdi, r10
    jb      2b
3:
    \load   [r9 - \width], \vec\()5
    \load   [r9 - 2 * \width], \vec\()6
    \load   [r9 - 3 * \width], \vec\()7
    \load   [r9 - 4 * \width], \vec\()8
    \load   [r8], \vec\()4
    .endm

    .macro ironverbs_downward vec, width, load, store
    \load   \vec\()4, [rsi + rdx - \width]
    \load   \vec\()5, [rsi]
    \load   \vec\()6, [rsi + \width]
    \load   \vec\()7, [rsi + 2 * \width]
    \load   \vec\()8, [rsi + 3 * \width]
    lea     r8, [rdi + rdx - \width]
    lea     r9, [rdi + 4 * \width]
    lea     r11, [rdi + rdx]
    lea     rcx, [r11 - 1]
    and     rcx, -\width
    mov     rax, r11
    sub     rax, rcx
    add     rsi, rdx
    sub     rsi, rax
    cmp     rcx, r9
    jbe     3f
    .p2align 5
2:
    \load   \vec\()0, [rsi - \width]
    \load   \vec\()1, [rsi - 2 * \width]
    \load   \vec\()2, [rsi - 3 * \width]
    \load   \vec\()3, [rsi - 4 * \width]
    sub     rsi, 4 * \width
    \store  [rcx - \width], \vec\()0
    \store  [rcx - 2 * \width], \vec\()1
    \store  [rcx - 3 * \width], \vec\()2
    \store  [rcx - 4 * \width], \vec\()3
    sub     rcx, 4 * \width
    cmp     rcx, r9
    ja      2b
3:
    \load   [rdi], \vec\()5
    \load   [rdi + \width], \vec\()6
    \load   [rdi + 2 * \width], \vec\()7
    \load   [rdi + 3 * \width], \vec\()8
    \load   [r8], \vec\()4
    .endm

    .macro ironverbs_function name
    .p2align 6
    .globl  \name
    .hidden \name
    .type   \name, @function
\name:
    .cfi_startproc
    .endm

    .macro ironverbs_end name
    .cfi_endproc
    .size   \name, . - \name
    .endm

    .pushsection .text.ironverbs_copy, "ax", @progbits

    .globl  ironverbs_copy_begin
    .hidden ironverbs_copy_begin
    .p2align 6
ironverbs_copy_begin:

    # Up to 128 bytes: everything is loaded before anything is stored.
    ironverbs_function ironverbs_copy_short
    cmp     rdx, 16
    ja      5f
    cmp     edx, 8
    jae     4f
    cmp     edx, 4
    jae     3f
    test    edx, edx
    je      9f
    mov     r8, rdx
    shr     r8
    movzx   eax, byte ptr [rsi]
    movzx   ecx, byte ptr [rsi + r8]
    movzx   r9d, byte ptr [rsi + rdx - 1]
    mov     byte ptr [rdi], al
    mov     byte ptr [rdi + r8], cl
    mov     byte ptr [rdi + rdx - 1], r9b
9:
    xor     eax, eax
    ret
3:
    mov     eax, dword ptr [rsi]
    mov     ecx, dword ptr [rsi + rdx - 4]
    mov     dword ptr [rdi], eax
    mov     dword ptr [rdi + rdx - 4], ecx
    xor     eax, eax
    ret
4:
    mov     rax, qword ptr [rsi]
    mov     rcx, qword ptr [rsi + rdx - 8]
    mov     qword ptr [rdi], rax
    mov     qword ptr [rdi + rdx - 8], rcx
    xor     eax, eax
    ret
5:
    movups  xmm0, [rsi]
    movups  xmm1, [rsi + rdx - 16]
    cmp     edx, 32
    jbe     6f
    movups  xmm2, [rsi + 16]
    movups  xmm3, [rsi + rdx - 32]
    cmp     edx, 64
    jbe     7f
    movups  xmm4, [rsi + 32]
    movups  xmm5, [rsi + rdx - 48]
    movups  xmm6, [rsi + 48]
    movups  xmm7, [rsi + rdx - 64]
    movups  [rdi + 32], xmm4
    movups  [rdi + rdx - 48], xmm5
    movups  [rdi + 48], xmm6
    movups  [rdi + rdx - 64], xmm7
7:
    movups  [rdi + 16], xmm2
    movups  [rdi + rdx - 32], xmm3
6:
    movups  [rdi], xmm0
    movups  [rdi + rdx - 16], xmm1
    xor     eax, eax
    ret
    ironverbs_end ironverbs_copy_short

    ironverbs_function ironverbs_copy_up_sse
    ironverbs_upward xmm, 16, movups, movaps
    xor     eax, eax
    ret
    ironverbs_end ironverbs_copy_up_sse

    ironverbs_function ironverbs_copy_down_sse
    ironverbs_downward xmm, 16, movups, movaps
    xor     eax, eax
    ret
    ironverbs_end ironverbs_copy_down_sse

    ironverbs_function ironverbs_compare_swap
    mov     rax, rsi
    lock cmpxchg qword ptr [rdi], rdx
    mov     qword ptr [rcx], rax
    xor     eax, eax
    ret
    ironverbs_end ironverbs_compare_swap

    ironverbs_function ironverbs_fetch_add
    lock xadd qword ptr [rdi], rsi
    mov     qword ptr [rdx], rsi
    xor     eax, eax
    ret
    ironverbs_end ironverbs_fetch_add

    # One store of 8, 4, 2 or 1 bytes.
    ironverbs_function ironverbs_store
    cmp     edx, 4
    ja      8f
    je      4f
    cmp     edx, 1
    je      1f
    mov     word ptr [rdi], si
    xor     eax, eax
    ret
1:
    mov     byte ptr [rdi], sil
    xor     eax, eax
    ret
4:
    mov     dword ptr [rdi], esi
    xor     eax, eax
    ret
8:
    mov     qword ptr [rdi], rsi
    xor     eax, eax
    ret
    ironverbs_end ironverbs_store

    ironverbs_function ironverbs_landing
    mov     eax, 1
    ret
    ironverbs_end ironverbs_landing

    .globl  ironverbs_copy_begin_avx
    .hidden ironverbs_copy_begin_avx
    .p2align 6
ironverbs_copy_begin_avx:

    ironverbs_function ironverbs_copy_up_avx
    ironverbs_upward ymm, 32, vmovdqu, vmovdqa
    vzeroupper
    xor     eax, eax
    ret
    ironverbs_end ironverbs_copy_up_avx

    ironverbs_function ironverbs_copy_down_avx
    ironverbs_downward ymm, 32, vmovdqu, vmovdqa
    vzeroupper
    xor     eax, eax
    ret
    ironverbs_end ironverbs_copy_down_avx

    ironverbs_function ironverbs_landing_avx
    vzeroupper
    mov     eax, 1
    ret
    ironverbs_end ironverbs_landing_avx

    .globl  ironverbs_copy_end
    .hidden ironverbs_copy_end
ironverbs_copy_end:

    .popsection
    .purgem ironverbs_upward
    .purgem ironverbs_downward
    .purgem ironverbs_function
    .purgem ironverbs_end
    "#
);

unsafe extern "sysv64" {
    fn ironverbs_copy_short(dst: u64, src: u64, len: usize) -> u32;
    fn ironverbs_copy_up_sse(dst: u64, src: u64, len: usize) -> u32;
    fn ironverbs_copy_down_sse(dst: u64, src: u64, len: usize) -> u32;
    fn ironverbs_copy_up_avx(dst: u64, src: u64, len: usize) -> u32;
    fn ironverbs_copy_down_avx(dst: u64, src: u64, len: usize) -> u32;
    fn ironverbs_store(dst: u64, value: u64, size: usize) -> u32;
    fn ironverbs_compare_swap(addr: u64, compare: u64, swap: u64, before: &mut u64) -> u32;
    fn ironverbs_fetch_add(addr: u64, add: u64, before: &mut u64) -> u32;

    static ironverbs_copy_begin: u8;
    static ironverbs_landing: u8;
    static ironverbs_copy_begin_avx: u8;
    static ironverbs_landing_avx: u8;
    static ironverbs_copy_end: u8;
}

/// The longest copy that `ironverbs_copy_short` does.
const SHORT: usize = 128;

/// Where the destination is ahead of the source by less than this, modulo 4096, loads of a copy
/// upwards take the stores just before them for their own (they compare 12 bits of an address), and
/// wait for them.
const ALIASING: u64 = 1024;

/// Whether a copy has to, or had better, begin at the end.
fn downward(dst: u64, src: u64, len: u64) -> bool {
    let ahead = dst.wrapping_sub(src);
    let overlaps = ahead < len;
    let overlapped = src.wrapping_sub(dst) < len;
    overlaps || (!overlapped && (1..ALIASING).contains(&(ahead % 4096)))
}

/// False: an instruction of it faulted.
///
/// # Safety
/// As [`super::copy`].
#[inline]
pub(super) unsafe fn copy(dst: u64, src: u64, len: usize) -> bool {
    if len <= SHORT {
        // SAFETY: reads and writes what the caller vouches for, or faults and is recovered.
        return unsafe { ironverbs_copy_short(dst, src, len) } == 0;
    }
    let downward = downward(dst, src, len as u64);
    // SAFETY: as above; the vectors' length was asked for, and `len` is at least four of them.
    let faulted = unsafe {
        if is_x86_feature_detected!("avx2") {
            match downward {
                true => ironverbs_copy_down_avx(dst, src, len),
                false => ironverbs_copy_up_avx(dst, src, len),
            }
        } else {
            match downward {
                true => ironverbs_copy_down_sse(dst, src, len),
                false => ironverbs_copy_up_sse(dst, src, len),
            }
        }
    };
    faulted == 0
}

/// Stores the lowest `size` bytes of a value, 1, 2, 4 or 8, at once. False: it faulted.
///
/// # Safety
/// As [`super::write`] of what is mapped at `dst`.
#[inline]
pub(super) unsafe fn store(dst: u64, value: u64, size: usize) -> bool {
    // SAFETY: writes what the caller vouches for, or faults and is recovered.
    unsafe { ironverbs_store(dst, value, size) == 0 }
}

/// The value before; None: it faulted.
///
/// # Safety
/// As [`super::compare_swap`]; aligned.
pub(super) unsafe fn compare_swap(addr: u64, compare: u64, swap: u64) -> Option<u64> {
    let mut before = 0;
    // SAFETY: the caller vouches for the word, where there is one.
    let faulted = unsafe { ironverbs_compare_swap(addr, compare, swap, &mut before) };
    (faulted == 0).then_some(before)
}

/// The value before; None: it faulted.
///
/// # Safety
/// As [`super::fetch_add`]; aligned.
pub(super) unsafe fn fetch_add(addr: u64, add: u64) -> Option<u64> {
    let mut before = 0;
    // SAFETY: the caller vouches for the word, where there is one.
    let faulted = unsafe { ironverbs_fetch_add(addr, add, &mut before) };
    (faulted == 0).then_some(before)
}

/// Where to go on when the instruction at `at` faulted; None: it is none of ours.
pub(super) fn landing(at: usize) -> Option<usize> {
    let [begin, landing, begin_avx, landing_avx, end] = [
        &raw const ironverbs_copy_begin,
        &raw const ironverbs_landing,
        &raw const ironverbs_copy_begin_avx,
        &raw const ironverbs_landing_avx,
        &raw const ironverbs_copy_end,
    ]
    .map(|symbol| symbol as usize);
    if (begin..begin_avx).contains(&at) {
        Some(landing)
    } else if (begin_avx..end).contains(&at) {
        Some(landing_avx)
    } else {
        None
    }
}

/// Makes the interrupted thread go on at the landing, if it was one of these copies that faulted.
///
/// # Safety
/// `context` is what a signal handler got as its third argument.
pub(super) unsafe fn recover(context: *mut libc::c_void) -> bool {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel made it, and reads it back when the handler returns.
    let Some(registers) = (unsafe { context.as_mut() }).map(|c| &mut c.uc_mcontext.gregs) else {
        return false;
    };
    let at = &mut registers[libc::REG_RIP as usize];
    let Some(landing) = landing(*at as usize) else { return false };
    *at = landing as libc::greg_t;
    true
}

/// The two long copies of a vector length, upwards and downwards, for tests.
#[cfg(test)]
pub(super) type Long = unsafe extern "sysv64" fn(u64, u64, usize) -> u32;

#[cfg(test)]
pub(super) fn long_copies() -> Vec<(&'static str, Long)> {
    let mut all: Vec<(&str, Long)> =
        vec![("up, SSE", ironverbs_copy_up_sse), ("down, SSE", ironverbs_copy_down_sse)];
    if is_x86_feature_detected!("avx2") {
        all.push(("up, AVX", ironverbs_copy_up_avx));
        all.push(("down, AVX", ironverbs_copy_down_avx));
    }
    all
}
