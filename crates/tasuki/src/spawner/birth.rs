//! How a process is born without a copy of this one, and without anybody waiting for it.
//!
//! A copy costs more than many a command does, and who starts as `vfork` does waits until the command has begun. So the
//! child shares our memory until it is another program, and does nothing there but a list of system calls that was
//! written before. It runs no code of ours but the few instructions below: no stack, no allocation, no lock, nothing of
//! its thread's own. All that it writes is how a call has failed.

use std::arch::asm;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::process::{Pid, Rlimit, Signal, WaitOptions};

/// Errors after which a program is looked for in the next place.
const ELSEWHERE: u64 =
    1 << libc::ENOENT | 1 << libc::EACCES | 1 << libc::ENOTDIR | 1 << libc::ENODEV;
/// What a system call returns at most; what is above is an error.
const MOST: usize = -4096_isize as usize;
/// What a signal that is not blocked, and does what it does by default, looks like to the kernel.
static NOTHING: [u64; 8] = [0; 8];
/// How a process writes that itself is meant.
static MYSELF: [u8; 1] = *b"0";
/// How many bytes a set of signals has.
const SIGNALS: usize = 8;

/// One system call of a child.
#[repr(C)]
struct Step {
    number: usize,
    given: [usize; 5],
    /// What it returns unless it fails.
    least: usize,
    most: usize,
    /// After which errors the next step comes, a bit for each; any other is the end.
    go_on: u64,
    /// How it failed; the child writes this.
    error: AtomicUsize,
}

// The instructions below go by these.
const _: () = {
    assert!(offset_of!(Step, given) == 8 && offset_of!(Step, least) == 48);
    assert!(offset_of!(Step, most) == 56 && offset_of!(Step, go_on) == 64);
    assert!(offset_of!(Step, error) == 72 && size_of::<Step>() == 80);
};

impl Step {
    fn error(&self) -> i32 {
        self.error.load(Ordering::Acquire) as i32
    }

    fn was_the_end(&self) -> bool {
        let error = self.error();
        error != 0 && (!(0..64).contains(&error) || self.go_on & 1 << error == 0)
    }
}

/// What a child does before it is another program, and all that it reads meanwhile.
pub(super) struct Plan {
    steps: Vec<Step>,
    /// Whether the first of them is to move into a cgroup.
    enters: bool,
    /// Whether it has our files, and not copies of them, until one of them is that it has not.
    shares_files: bool,
    texts: Vec<CString>,
    lists: Vec<Vec<*const c_char>>,
    limits: Vec<Vec<libc::rlimit64>>,
    /// Not zero as long as the child may be in our memory: the kernel sees to it.
    inside: Arc<AtomicU32>,
}

impl Plan {
    /// For a child that, where there is a cgroup, moves in, should it not be born there.
    pub(super) fn new(entry: Option<BorrowedFd<'_>>) -> Self {
        let mut plan = Self {
            steps: Vec::with_capacity(32),
            enters: entry.is_some(),
            shares_files: false,
            texts: Vec::new(),
            lists: Vec::new(),
            limits: Vec::new(),
            inside: Arc::default(),
        };
        if let Some(entry) = entry {
            let entry = entry.as_raw_fd() as usize;
            plan.step(libc::SYS_write, [entry, MYSELF.as_ptr().addr(), 1, 0, 0]);
            // Where it may not, it is looked after in other ways: whatever comes of it is good.
            plan.last().most = usize::MAX;
        }
        plan
    }

    /// Of our files it has only those with lower numbers, as they are when it gets there; nobody copies or closes the others.
    /// To be said before it opens any.
    pub(super) fn leave_files(&mut self, from: usize) {
        let (last, unshare) = (u32::MAX as usize, libc::CLOSE_RANGE_UNSHARE as usize);
        self.step(libc::SYS_close_range, [from, last, unshare, 0, 0]);
        self.shares_files = true;
    }

    /// It may have so many files open.
    pub(super) fn limit_files(&mut self, files: Rlimit) {
        let limit = |most: Option<u64>| most.unwrap_or(libc::RLIM64_INFINITY);
        let (rlim_cur, rlim_max) = (limit(files.current), limit(files.maximum));
        let limit = vec![libc::rlimit64 { rlim_cur, rlim_max }];
        let nofile = libc::RLIMIT_NOFILE as usize;
        self.step(libc::SYS_prlimit64, [0, nofile, limit.as_ptr().addr(), 0, 0]);
        self.limits.push(limit);
    }

    /// It has a session and a process group of its own.
    pub(super) fn own_session(&mut self) {
        self.step(libc::SYS_setsid, [0; 5]);
    }

    /// It ends with the thread that starts it, which is one of this process.
    pub(super) fn follow(&mut self, parent: Pid) {
        let (death, kill) = (libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize);
        self.step(libc::SYS_prctl, [death, kill, 0, 0, 0]);
        // That may have died before it could be followed.
        self.step(libc::SYS_getppid, [0; 5]);
        let parent = parent.as_raw_nonzero().get() as usize;
        (self.last().least, self.last().most) = (parent, parent);
    }

    /// Its own file of this number is one of ours.
    pub(super) fn open(&mut self, ours: BorrowedFd<'_>, number: usize) {
        self.step(libc::SYS_dup3, [ours.as_raw_fd() as usize, number, 0, 0, 0]);
    }

    /// It is here.
    pub(super) fn be_in(&mut self, directory: CString) {
        self.step(libc::SYS_chdir, [directory.as_ptr().addr(), 0, 0, 0, 0]);
        self.texts.push(directory);
    }

    /// No signal is blocked, and none ignored because we do.
    pub(super) fn hear_signals(&mut self) {
        let (nothing, set) = (NOTHING.as_ptr().addr(), libc::SIG_SETMASK as usize);
        let pipe = libc::SIGPIPE as usize;
        self.step(libc::SYS_rt_sigaction, [pipe, nothing, 0, SIGNALS, 0]);
        self.step(libc::SYS_rt_sigprocmask, [set, nothing, 0, SIGNALS, 0]);
    }

    /// It is the first of these programs that there is.
    pub(super) fn become_one_of(
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
            self.step(libc::SYS_execve, [program.as_ptr().addr(), argv, env, 0, 0]);
            self.last().go_on = ELSEWHERE;
            self.texts.push(program);
        }
    }

    /// The lowest number it finds free from this one on is this one.
    pub(super) fn find_free(&mut self, file: BorrowedFd<'_>, number: usize) {
        let (file, copy) = (file.as_raw_fd() as usize, libc::F_DUPFD as usize);
        self.step(libc::SYS_fcntl, [file, copy, number, 0, 0]);
        (self.last().least, self.last().most) = (number, number);
    }

    /// It is over.
    pub(super) fn leave(&mut self) {
        self.step(libc::SYS_exit_group, [0; 5]);
    }

    fn step(&mut self, number: libc::c_long, given: [usize; 5]) {
        let (number, error) = (number as usize, AtomicUsize::new(0));
        self.steps.push(Step { number, given, least: 0, most: MOST, go_on: 0, error });
    }

    fn last(&mut self) -> &mut Step {
        self.steps.last_mut().expect("asked of what was just added")
    }

    /// Starts it, born in a cgroup where there is one and that can be. `wait`: until it is another program, or is not to
    /// be one.
    pub(super) fn start(
        mut self,
        cgroup: Option<BorrowedFd<'_>>,
        wait: bool,
    ) -> io::Result<(Pid, OwnedFd, Birth)> {
        // Whatever the last is, nothing comes after it.
        self.last().go_on = 0;
        self.inside.store(1, Ordering::Release);
        let inside = self.inside.as_ptr().addr();
        let mut pidfd: c_int = -1;
        let told = (&raw mut pidfd).addr();
        let mut flags = libc::CLONE_VM | libc::CLONE_PIDFD | libc::CLONE_CHILD_CLEARTID;
        if wait {
            flags |= libc::CLONE_VFORK;
        }
        if self.shares_files {
            flags |= libc::CLONE_FILES;
        }
        let born = |number: libc::c_long, given: [usize; 5], steps: &[Step]| {
            // SAFETY: a child that does these steps is all that comes of it, and what they read is kept: see `Birth`.
            match unsafe { clone(number as usize, given, steps.as_ptr()) } {
                pid @ 1.. => Ok(pid as i32),
                error => Err(io::Error::from_raw_os_error(-error as i32)),
            }
        };
        let into = cgroup.map_or(0, |_| 1 << 33);
        let clear_sighand = 1 << 32;
        let args = [
            flags as u64 | clear_sighand | into,
            told as u64,
            inside as u64,
            0,
            libc::SIGCHLD as u64,
            // No stack, but ours, which is not touched; no storage of a thread; no number of its own.
            0,
            0,
            0,
            0,
            0,
            cgroup.map_or(0, |cgroup| cgroup.as_raw_fd() as u64),
        ];
        let given = [args.as_ptr().addr(), size_of_val(&args), 0, 0, 0];
        let entered = usize::from(self.enters && cgroup.is_some());
        let mut pid = born(libc::SYS_clone3, given, &self.steps[entered..]);
        let crowded = [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE].map(Some);
        if pid.as_ref().is_err_and(|error| !crowded.contains(&error.raw_os_error())) {
            // An old kernel, a container that may not ask so, or a cgroup that takes nobody. The fourth and the fifth of
            // these are one or the other, depending on the machine, and of the other nothing is made.
            let flags = (flags | libc::SIGCHLD) as usize;
            pid = born(libc::SYS_clone, [flags, 0, told, inside, inside], &self.steps);
        }
        let pid = Pid::from_raw(pid?).ok_or_else(|| io::Error::other("no child was born"))?;
        if pidfd < 0 {
            // Linux before 5.2 starts it and opens nothing: who cannot be waited for is not wanted.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: the kernel has just opened it for us.
        let end = unsafe { OwnedFd::from_raw_fd(pidfd) };
        Ok((pid, end, Birth(ManuallyDrop::new(self))))
    }
}

/// A child that may still be in our memory: what it reads there is kept until it is not.
pub(super) struct Birth(ManuallyDrop<Plan>);

impl Birth {
    /// Whether it is another program by now, or will not be one.
    pub(super) fn is_over(&self) -> bool {
        self.inside().is_over()
    }

    /// For whoever wants to know only that.
    pub(super) fn inside(&self) -> Inside {
        Inside(Arc::clone(&self.0.inside))
    }

    /// Why it will not; nothing can be said before it is over.
    pub(super) fn failure(&self) -> Option<io::Error> {
        let steps = &self.0.steps;
        let end = steps.iter().find(|step| step.was_the_end()).filter(|_| self.is_over())?;
        let execs = || steps.iter().filter(|step| step.number == libc::SYS_execve as usize);
        // A program that may not be run says more than that there is none in other places.
        let nowhere = end.error() == libc::ENOENT || end.error() == libc::ENOTDIR;
        let denied = execs().any(|step| step.error() == libc::EACCES);
        let error = if nowhere && denied { libc::EACCES } else { end.error() };
        Some(io::Error::from_raw_os_error(error))
    }
}

/// Whether a child may still be in our memory.
pub(super) struct Inside(Arc<AtomicU32>);

impl Inside {
    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

impl Drop for Birth {
    fn drop(&mut self) {
        if self.is_over() {
            // SAFETY: once, and nobody reads it any more. Else it is left where it is.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

/// A system call that clones; in the clone, steps until one of them is an end or does not return. Returns only in the
/// parent: a number, or a negative error.
///
/// # Safety
///
/// The call must make a process that shares our memory and is given no stack. What the steps point to, and themselves,
/// must stay until that is gone from our memory, and there must be one that fails or does not return.
///
/// Nobody's stack is touched by the child, so that the one it shares may be in use. No signal handler runs on it: in a
/// clone3 there are none, and in a clone only those for signals that nobody sends to somebody who is about to be another program,
/// since what the spawner handles are faults of its own.
#[cfg(target_arch = "x86_64")]
unsafe fn clone(number: usize, given: [usize; 5], steps: *const Step) -> isize {
    let born;
    // SAFETY: as above. What the parent comes back with is named; the child does not come back.
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
            inlateout("rax") number => born,
            in("rdi") given[0],
            in("rsi") given[1],
            in("rdx") given[2],
            in("r10") given[3],
            in("r8") given[4],
            in("r12") steps,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    born
}

/// The same in another language.
///
/// # Safety
///
/// As there.
#[cfg(target_arch = "aarch64")]
unsafe fn clone(number: usize, given: [usize; 5], steps: *const Step) -> isize {
    let born;
    // SAFETY: as there.
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
            inlateout("x0") given[0] => born,
            in("x1") given[1],
            in("x2") given[2],
            in("x3") given[3],
            in("x4") given[4],
            in("x20") steps,
            options(nostack),
        );
    }
    born
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use rustix::process::waitpid;

    /// A number that nobody here has a file of.
    const MINE: i32 = 900;

    fn end(programs: &[&str], cgroup: Option<BorrowedFd<'_>>, wait: bool) -> (i32, Option<i32>) {
        let text = |text: &str| CString::new(text).unwrap();
        let mut plan = Plan::new(cgroup);
        plan.own_session();
        plan.hear_signals();
        let programs = programs.iter().map(|program| text(program)).collect();
        plan.become_one_of(
            programs,
            vec![text("sh"), text("-c"), text("exit $A")],
            vec![text("A=5")],
        );
        let (pid, _, birth) = plan.start(cgroup, wait).unwrap();
        let status = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap().1;
        assert!(birth.is_over(), "who has ended is gone");
        let failure = birth.failure().and_then(|error| error.raw_os_error());
        (status.exit_status().unwrap(), failure)
    }

    /// What is opened and closed here meanwhile is no business of its own.
    #[test]
    fn a_child_has_files_of_its_own() {
        // Not close-on-exec: what is not left behind it has.
        let one = || rustix::io::dup(File::open("/dev/null").unwrap()).unwrap();
        let mut both = [one(), one()];
        both.sort_by_key(std::os::fd::AsRawFd::as_raw_fd);
        let [kept, left] = both;
        let [low, high] = [kept.as_raw_fd(), left.as_raw_fd()];
        let text = |text: &str| CString::new(text).unwrap();
        let script =
            format!("test -e /dev/fd/{low} && test -e /dev/fd/{MINE} && ! test -e /dev/fd/{high}");
        let mut plan = Plan::new(None);
        plan.leave_files(high as usize);
        plan.open(kept.as_fd(), MINE as usize);
        plan.become_one_of(
            vec![text("/bin/sh")],
            vec![text("sh"), text("-c"), text(&script)],
            vec![],
        );
        let (pid, _, birth) = plan.start(None, true).unwrap();
        let status = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap().1;
        let failure = birth.failure().map(|error| error.to_string());
        assert_eq!((status.exit_status(), failure), (Some(0), None));
        assert!(rustix::io::fcntl_getfd(&left).is_ok(), "ours are still there");
        assert!(!std::path::Path::new(&format!("/proc/self/fd/{MINE}")).exists());
    }

    /// Also where the kernel refuses the better way, as it does for a cgroup that is none.
    #[test]
    fn a_child_is_another_program_or_says_why_not() {
        let none = File::options().read(true).write(true).open("/dev/null").unwrap();
        for cgroup in [None, Some(none.as_fd())] {
            for wait in [true, false] {
                let end = |programs: &[&str]| end(programs, cgroup, wait);
                assert_eq!(end(&["/bin/sh"]), (5, None));
                assert_eq!(end(&["/nowhere/sh", "/etc/passwd/sh", "/bin/sh"]), (5, None));
                assert_eq!(end(&["/nowhere/sh"]), (127, Some(libc::ENOENT)));
                assert_eq!(end(&["/etc", "/nowhere/sh"]), (127, Some(libc::EACCES)));
                assert_eq!(end(&["/nowhere/sh", "/etc/passwd/sh"]), (127, Some(libc::ENOTDIR)));
            }
        }
    }
}
