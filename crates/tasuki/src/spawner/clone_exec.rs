//! Creates a child process and executes a program in it, without copying this process and without waiting.
//!
//! `fork` copies the address space, which costs more than many a command. `vfork` stops the caller until the child has
//! executed its program. Here the child shares our memory (`CLONE_VM`) until its `execve`, the caller goes on, and the
//! child only executes a list of system calls that was prepared before. The child runs none of our code but the few
//! instructions of `clone` below: it uses no stack, no allocation, no lock and no thread-local storage. It writes
//! nothing but the errors of its system calls.

use std::arch::asm;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::process::{Pid, Rlimit, Signal, WaitOptions};

/// Errors of `execve` after which the next candidate path is tried, one bit for each.
const TRY_NEXT_ERRORS: u64 =
    1 << libc::ENOENT | 1 << libc::EACCES | 1 << libc::ENOTDIR | 1 << libc::ENODEV;
/// Maximum return value of a system call that succeeds; larger values are negated error numbers.
const MAX_SUCCESS: usize = -4096_isize as usize;
/// A zeroed `sigaction` (default action) and a zeroed signal set (nothing blocked), as the kernel reads them.
static ZEROS: [u64; 8] = [0; 8];
/// Text that a process writes to `cgroup.procs` to move itself.
static OWN_PID_TEXT: [u8; 1] = *b"0";
/// Size of a signal set of the kernel in bytes.
const SIGNAL_SET_BYTES: usize = 8;

/// One system call of a child. The assembly below relies on the layout.
#[repr(C)]
struct SyscallStep {
    /// Number of the system call.
    number: usize,
    args: [usize; 5],
    /// Minimum return value of a call that succeeds.
    min_result: usize,
    /// Maximum return value of a call that succeeds.
    max_result: usize,
    /// Errors after which the child goes on with the next step, one bit for each. After any other error it exits.
    tolerated_errors: u64,
    /// Error number of the call, written by the child; 0: it succeeded.
    error: AtomicUsize,
}

// The assembly below uses these offsets.
const _: () = {
    assert!(offset_of!(SyscallStep, args) == 8 && offset_of!(SyscallStep, min_result) == 48);
    assert!(
        offset_of!(SyscallStep, max_result) == 56
            && offset_of!(SyscallStep, tolerated_errors) == 64
    );
    assert!(offset_of!(SyscallStep, error) == 72 && size_of::<SyscallStep>() == 80);
};

impl SyscallStep {
    fn error(&self) -> i32 {
        self.error.load(Ordering::Acquire) as i32
    }

    fn ended_child(&self) -> bool {
        let error = self.error();
        error != 0 && (!(0..64).contains(&error) || self.tolerated_errors & 1 << error == 0)
    }
}

/// The system calls of a child until it executes its program, and the memory that they read.
pub(super) struct ChildSetup {
    steps: Vec<SyscallStep>,
    /// Whether the first step moves the child into a cgroup.
    joins_cgroup: bool,
    /// Texts that the steps point to.
    texts: Vec<CString>,
    /// Null-terminated lists of texts that the steps point to.
    lists: Vec<Vec<*const c_char>>,
    /// Resource limits that the steps point to.
    limits: Vec<Vec<libc::rlimit64>>,
    /// Not zero while the child may share our memory. The kernel clears it (`CLONE_CHILD_CLEARTID`).
    in_memory: Arc<AtomicU32>,
}

impl ChildSetup {
    /// A setup for a child that moves into a cgroup, given by its `cgroup.procs`, unless it is created in it.
    pub(super) fn new(procs_file: Option<BorrowedFd<'_>>) -> Self {
        let mut setup = Self {
            steps: Vec::with_capacity(32),
            joins_cgroup: procs_file.is_some(),
            texts: Vec::new(),
            lists: Vec::new(),
            limits: Vec::new(),
            in_memory: Arc::default(),
        };
        if let Some(procs_file) = procs_file {
            let procs_fd = procs_file.as_raw_fd() as usize;
            setup.add_step(libc::SYS_write, [procs_fd, OWN_PID_TEXT.as_ptr().addr(), 1, 0, 0]);
            // If the move is refused, the processes are found in other ways: every result counts as success.
            setup.last_step().max_result = usize::MAX;
        }
        setup
    }

    /// The child gets this limit of open files.
    pub(super) fn limit_open_files(&mut self, files: Rlimit) {
        let limit = |limit: Option<u64>| limit.unwrap_or(libc::RLIM64_INFINITY);
        let (rlim_cur, rlim_max) = (limit(files.current), limit(files.maximum));
        let limit = vec![libc::rlimit64 { rlim_cur, rlim_max }];
        let nofile = libc::RLIMIT_NOFILE as usize;
        self.add_step(libc::SYS_prlimit64, [0, nofile, limit.as_ptr().addr(), 0, 0]);
        self.limits.push(limit);
    }

    /// The child gets a session and a process group of its own.
    pub(super) fn new_session(&mut self) {
        self.add_step(libc::SYS_setsid, [0; 5]);
    }

    /// The child is killed when the thread that creates it ends. That thread belongs to the process `parent`.
    pub(super) fn die_with_parent(&mut self, parent: Pid) {
        let (death, kill) = (libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize);
        self.add_step(libc::SYS_prctl, [death, kill, 0, 0, 0]);
        // The parent may have died before the previous step: then the parent id is another one, and the child exits.
        self.add_step(libc::SYS_getppid, [0; 5]);
        let parent = parent.as_raw_nonzero().get() as usize;
        (self.last_step().min_result, self.last_step().max_result) = (parent, parent);
    }

    /// The file descriptor `number` of the child becomes a copy of one of ours.
    pub(super) fn set_fd(&mut self, ours: BorrowedFd<'_>, number: usize) {
        self.add_step(libc::SYS_dup3, [ours.as_raw_fd() as usize, number, 0, 0, 0]);
    }

    /// The child changes to this directory.
    pub(super) fn change_dir(&mut self, directory: CString) {
        self.add_step(libc::SYS_chdir, [directory.as_ptr().addr(), 0, 0, 0, 0]);
        self.texts.push(directory);
    }

    /// The child blocks no signal, and does not inherit that we ignore SIGPIPE.
    pub(super) fn reset_signals(&mut self) {
        let (nothing, set) = (ZEROS.as_ptr().addr(), libc::SIG_SETMASK as usize);
        let pipe = libc::SIGPIPE as usize;
        self.add_step(libc::SYS_rt_sigaction, [pipe, nothing, 0, SIGNAL_SET_BYTES, 0]);
        self.add_step(libc::SYS_rt_sigprocmask, [set, nothing, 0, SIGNAL_SET_BYTES, 0]);
    }

    /// The child executes the first of these programs that exists.
    pub(super) fn exec_first_of(
        &mut self,
        programs: Vec<CString>,
        argv: Vec<CString>,
        env: Vec<CString>,
    ) {
        let [argv, env] = [argv, env].map(|texts| {
            let ends = std::iter::once(std::ptr::null());
            let list: Vec<_> = texts.iter().map(|text| text.as_ptr()).chain(ends).collect();
            let begin = list.as_ptr().addr();
            self.lists.push(list);
            self.texts.extend(texts);
            begin
        });
        for program in programs {
            self.add_step(libc::SYS_execve, [program.as_ptr().addr(), argv, env, 0, 0]);
            self.last_step().tolerated_errors = TRY_NEXT_ERRORS;
            self.texts.push(program);
        }
    }

    /// The child exits with code 0.
    pub(super) fn exit(&mut self) {
        self.add_step(libc::SYS_exit_group, [0; 5]);
    }

    fn add_step(&mut self, number: libc::c_long, args: [usize; 5]) {
        let (number, error) = (number as usize, AtomicUsize::new(0));
        self.steps.push(SyscallStep {
            number,
            args,
            min_result: 0,
            max_result: MAX_SUCCESS,
            tolerated_errors: 0,
            error,
        });
    }

    fn last_step(&mut self) -> &mut SyscallStep {
        self.steps.last_mut().expect("a step was just added")
    }

    /// Creates the child, directly in the cgroup if one is given and the kernel can do that. Returns its process id,
    /// its pidfd and the pending `execve`. `wait`: return only when the child no longer shares our memory.
    pub(super) fn clone_child(
        mut self,
        cgroup: Option<BorrowedFd<'_>>,
        wait: bool,
    ) -> io::Result<(Pid, OwnedFd, PendingExec)> {
        // After the last step nothing follows, so every error of it ends the child.
        self.last_step().tolerated_errors = 0;
        self.in_memory.store(1, Ordering::Release);
        let flag_address = self.in_memory.as_ptr().addr();
        let mut pidfd: c_int = -1;
        let pidfd_address = (&raw mut pidfd).addr();
        let mut flags = libc::CLONE_VM | libc::CLONE_PIDFD | libc::CLONE_CHILD_CLEARTID;
        if wait {
            flags |= libc::CLONE_VFORK;
        }
        let clone_with = |number: libc::c_long, args: [usize; 5], steps: &[SyscallStep]| {
            // SAFETY: the only effect is a child that executes these steps, and `PendingExec` keeps the memory that
            // they read.
            match unsafe { clone(number as usize, args, steps.as_ptr()) } {
                pid @ 1.. => Ok(pid as i32),
                error => Err(io::Error::from_raw_os_error(-error as i32)),
            }
        };
        let clone_into_cgroup = cgroup.map_or(0, |_| 1 << 33);
        let clear_sighand = 1 << 32;
        let clone_args = [
            flags as u64 | clear_sighand | clone_into_cgroup,
            pidfd_address as u64,
            flag_address as u64,
            0,
            libc::SIGCHLD as u64,
            // No stack: the child shares ours and does not touch it. No thread-local storage, no chosen process id.
            0,
            0,
            0,
            0,
            0,
            cgroup.map_or(0, |cgroup| cgroup.as_raw_fd() as u64),
        ];
        let syscall_args = [clone_args.as_ptr().addr(), size_of_val(&clone_args), 0, 0, 0];
        let first_step = usize::from(self.joins_cgroup && cgroup.is_some());
        let mut pid = clone_with(libc::SYS_clone3, syscall_args, &self.steps[first_step..]);
        let no_resources = [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE].map(Some);
        if pid.as_ref().is_err_and(|error| !no_resources.contains(&error.raw_os_error())) {
            // An old kernel, a container that forbids `clone3`, or a cgroup that accepts no process: use `clone`. Its
            // fourth and fifth arguments are the address of the thread id and the thread-local storage, in an order
            // that depends on the architecture; the storage is not used without its flag, so both get the same value.
            let flags = (flags | libc::SIGCHLD) as usize;
            pid = clone_with(
                libc::SYS_clone,
                [flags, 0, pidfd_address, flag_address, flag_address],
                &self.steps,
            );
        }
        let pid = Pid::from_raw(pid?).ok_or_else(|| io::Error::other("no child was created"))?;
        if pidfd < 0 {
            // Linux before 5.2 creates the child and ignores the request for a pidfd. Without one it cannot be waited
            // for.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: the kernel has just opened this file descriptor for us.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        Ok((pid, pidfd, PendingExec(ManuallyDrop::new(self))))
    }
}

/// A child that may not have executed its program yet. It keeps the memory that the child reads until then.
pub(super) struct PendingExec(ManuallyDrop<ChildSetup>);

impl PendingExec {
    /// Whether the child no longer shares our memory: it has executed its program or has ended.
    pub(super) fn has_left_memory(&self) -> bool {
        self.0.in_memory.load(Ordering::Acquire) == 0
    }

    /// Why the program could not be executed. `None`: it was executed, or the child still shares our memory.
    pub(super) fn exec_error(&self) -> Option<io::Error> {
        let steps = &self.0.steps;
        let end =
            steps.iter().find(|step| step.ended_child()).filter(|_| self.has_left_memory())?;
        let exec_steps = || steps.iter().filter(|step| step.number == libc::SYS_execve as usize);
        // If one candidate exists but is not permitted, that says more than that the last candidate does not exist.
        let not_found = end.error() == libc::ENOENT || end.error() == libc::ENOTDIR;
        let denied = exec_steps().any(|step| step.error() == libc::EACCES);
        let error = if not_found && denied { libc::EACCES } else { end.error() };
        Some(io::Error::from_raw_os_error(error))
    }
}

impl Drop for PendingExec {
    fn drop(&mut self) {
        if self.has_left_memory() {
            // SAFETY: dropped once, and the child no longer reads the memory. Otherwise the memory is leaked.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

/// Executes a system call that clones this process. The child executes the steps until one of them fails or does not
/// return. The function returns only in the parent: a process id or a negated error number.
///
/// # Safety
///
/// The system call must create a process that shares our memory and gets no stack. The steps, and the memory that they
/// point to, must stay valid until the child no longer shares our memory. One of the steps must fail or not return.
///
/// The child touches no stack, so the parent may use the shared one. No signal handler runs in the child: with `clone3`
/// there are none. With `clone` there are only those of the spawner, which handle its own faults (such as SIGSEGV), and
/// no process sends these signals to a child that is about to execute a program.
#[cfg(target_arch = "x86_64")]
unsafe fn clone(number: usize, args: [usize; 5], steps: *const SyscallStep) -> isize {
    let result;
    // SAFETY: as above. All registers that differ in the parent afterwards are named; the child never returns.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 7f",
            "2:", // the next step
            "mov rax, [r12]",
            "mov rdi, [r12 + 8]",
            "mov rsi, [r12 + 16]",
            "mov rdx, [r12 + 24]",
            "mov r10, [r12 + 32]",
            "mov r8, [r12 + 40]",
            "syscall",
            "cmp rax, [r12 + 48]",
            "jb 3f",
            "cmp rax, [r12 + 56]",
            "jbe 4f",
            "3:", // it failed
            "neg rax",
            "mov [r12 + 72], rax",
            "cmp rax, 63",
            "ja 5f",
            "mov rdx, [r12 + 64]",
            "bt rdx, rax",
            "jnc 5f",
            "4:",
            "add r12, 80",
            "jmp 2b",
            "5:", // the end
            "mov edi, 127",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "7:",
            exit = const libc::SYS_exit_group,
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r12") steps,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// As above, for another architecture.
///
/// # Safety
///
/// As above.
#[cfg(target_arch = "aarch64")]
unsafe fn clone(number: usize, args: [usize; 5], steps: *const SyscallStep) -> isize {
    let result;
    // SAFETY: as above.
    unsafe {
        asm!(
            "svc #0",
            "cbnz x0, 7f",
            "2:", // the next step
            "ldp x8, x0, [x20]",
            "ldp x1, x2, [x20, #16]",
            "ldp x3, x4, [x20, #32]",
            "svc #0",
            "ldp x9, x10, [x20, #48]",
            "cmp x0, x9",
            "b.lo 3f",
            "cmp x0, x10",
            "b.ls 4f",
            "3:", // it failed
            "neg x0, x0",
            "str x0, [x20, #72]",
            "cmp x0, #63",
            "b.hi 5f",
            "ldr x9, [x20, #64]",
            "lsr x9, x9, x0",
            "tbz x9, #0, 5f",
            "4:",
            "add x20, x20, #80",
            "b 2b",
            "5:", // the end
            "mov x0, #127",
            "mov x8, #{exit}",
            "svc #0",
            "brk #1",
            "7:",
            exit = const libc::SYS_exit_group,
            in("x8") number,
            inlateout("x0") args[0] => result,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x20") steps,
            options(nostack),
        );
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use rustix::process::waitpid;

    fn run_child(
        programs: &[&str],
        cgroup: Option<BorrowedFd<'_>>,
        wait: bool,
    ) -> (i32, Option<i32>) {
        let text = |text: &str| CString::new(text).unwrap();
        let mut setup = ChildSetup::new(cgroup);
        setup.new_session();
        setup.reset_signals();
        let programs = programs.iter().map(|program| text(program)).collect();
        setup.exec_first_of(
            programs,
            vec![text("sh"), text("-c"), text("exit $A")],
            vec![text("A=5")],
        );
        let (pid, _, exec) = setup.clone_child(cgroup, wait).unwrap();
        let status = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap().1;
        assert!(exec.has_left_memory(), "a child that has ended no longer shares our memory");
        let failure = exec.exec_error().and_then(|error| error.raw_os_error());
        (status.exit_status().unwrap(), failure)
    }

    /// Also when the kernel refuses `clone3`, as it does for a file that is no cgroup.
    #[test]
    fn child_executes_its_program_or_reports_the_error() {
        let none = File::options().read(true).write(true).open("/dev/null").unwrap();
        for cgroup in [None, Some(none.as_fd())] {
            for wait in [true, false] {
                let run = |programs: &[&str]| run_child(programs, cgroup, wait);
                assert_eq!(run(&["/bin/sh"]), (5, None));
                assert_eq!(run(&["/nowhere/sh", "/etc/passwd/sh", "/bin/sh"]), (5, None));
                assert_eq!(run(&["/nowhere/sh"]), (127, Some(libc::ENOENT)));
                assert_eq!(run(&["/etc", "/nowhere/sh"]), (127, Some(libc::EACCES)));
                assert_eq!(run(&["/nowhere/sh", "/etc/passwd/sh"]), (127, Some(libc::ENOTDIR)));
            }
        }
    }
}
