//! Switches between stacks: fibers of a kernel's threads.

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::naked_asm;

    /// Saves this stack's pointer at `save` and goes on with the stack `to`, where it was left.
    ///
    /// # Safety
    /// `save` is valid for a write; `to` was saved by this function or made by `prepare`, and has not been used since.
    #[unsafe(naked)]
    pub unsafe extern "C" fn switch(save: *mut *mut u8, to: *mut u8) {
        // The System V convention: these registers belong to the caller of a function.
        naked_asm!(
            "push rbp",
            "push rbx",
            "push r12",
            "push r13",
            "push r14",
            "push r15",
            "mov [rdi], rsp",
            "mov rsp, rsi",
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbx",
            "pop rbp",
            "ret",
        )
    }

    /// Lays out a stack that starts with `entry`.
    ///
    /// # Safety
    /// `top` is the end of writable memory, aligned to 16 bytes; `entry` never returns.
    #[expect(clippy::cast_ptr_alignment, reason = "`top` is aligned")]
    pub unsafe fn prepare(top: *mut u8, entry: extern "C" fn()) -> *mut u8 {
        let words = top.cast::<usize>();
        // SAFETY: eight words below the top. The address of `entry` lies at a multiple of 16, so that the stack has
        // the offset of a function that was just called.
        unsafe {
            for below in 1..=8 {
                words.sub(below).write(0);
            }
            words.sub(2).write(entry as usize);
            words.sub(8).cast()
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub use imp::{prepare, switch};

pub const IS_SUPPORTED: bool = cfg!(target_arch = "x86_64");

#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn switch(_: *mut *mut u8, _: *mut u8) {}

#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn prepare(top: *mut u8, _: extern "C" fn()) -> *mut u8 {
    top
}
