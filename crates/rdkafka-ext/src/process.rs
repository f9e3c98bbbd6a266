//! The end of the process, without a last word.

/// Ends this process as `kill -9` does: no destructor runs, nothing is flushed, no other thread takes another step. For
/// tests of what a crash leaves behind.
pub fn kill_this_process() -> ! {
    // SAFETY: two system calls without memory of ours. A signal to oneself that cannot be blocked is delivered before the
    // call returns.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
    }
    // Not reached; the compiler cannot know.
    std::process::abort()
}
