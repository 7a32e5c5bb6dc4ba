//! The script `./test`: it starts real servers from a directory with spaces in its name, returns the exit code of its
//! command, and leaves no processes and files behind when it is interrupted.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// A copy of the script in its own directory, which is removed at the end.
struct ScriptCopy(PathBuf);

impl ScriptCopy {
    fn new(name: &str) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        // Not under the build directory: the users of the database servers may not have access to it.
        let copy = std::env::temp_dir().join(format!("tasuki {name} {}", std::process::id()));
        let _ = fs::remove_dir_all(&copy); // left by a test that failed
        fs::create_dir_all(copy.join(".ci")).unwrap();
        for file in ["test", ".ci/services.sh"] {
            fs::copy(source.join(file), copy.join(file)).unwrap();
        }
        Self(copy)
    }

    fn with_services(&self, script: &str) -> Child {
        Command::new(self.0.join("test"))
            .args(["--with-services", "bash", "-c", script])
            .env("TMPDIR", &self.0)
            // A separate target directory: this copy must not touch the one that all clones share.
            .env("CARGO_TARGET_DIR", self.0.join("target"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("the script runs")
    }

    /// The temporary directories that were not removed.
    fn list_leftover_folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.to_string_lossy().contains("tasuki-test.")).collect()
    }
}

impl Drop for ScriptCopy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Processes with this variable in their environment.
fn list_processes_with(variable: &str) -> Vec<PathBuf> {
    let wanted = variable.as_bytes();
    let holds = |path: &PathBuf| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|one| one == wanted)
    };
    let entries = fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    entries.filter(holds).collect()
}

#[test]
fn the_servers_accept_connections_and_the_exit_code_is_returned() {
    let script_copy = ScriptCopy::new("answers");
    let connect_script = r#"
        for url in "$TASUKI_TEST_PG" "$TASUKI_TEST_MYSQL" "$TASUKI_TEST_REDIS"; do
            address=${url#*@} address=${address%%/*}
            : </dev/tcp/${address%:*}/${address#*:} || exit 1
        done
        exit 7"#;
    let status = script_copy.with_services(connect_script).wait_with_output().unwrap().status;
    assert_eq!(status.code(), Some(7));
    assert_eq!(script_copy.list_leftover_folders(), [] as [PathBuf; 0]);
}

#[test]
fn an_interrupt_leaves_no_processes_and_files() {
    let script_copy = ScriptCopy::new("interrupts");
    let mut child = script_copy.with_services("echo run $TASUKI_TEST_RUN; exec sleep 600");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let run = lines.find_map(|line| line.strip_prefix("run ").map(str::to_owned)).unwrap();
    let marker = format!("TASUKI_TEST_RUN={run}");
    assert!(!list_processes_with(&marker).is_empty(), "the command runs");

    // As Ctrl-C does: signal the whole foreground process group of the terminal.
    killpg(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    lines.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(list_processes_with(&marker), [] as [PathBuf; 0]);
    assert_eq!(script_copy.list_leftover_folders(), [] as [PathBuf; 0]);
}

#[test]
fn without_root_it_lists_the_packages_to_install() {
    let script_copy = ScriptCopy::new("novices");
    // A machine with only a shell and cargo, and a user who is not root.
    let bin = script_copy.0.join("bin");
    fs::create_dir_all(&bin).unwrap();
    let tools = [
        "bash", "env", "dirname", "mktemp", "chmod", "cat", "rm", "tr", "od", "grep", "find",
        "sort", "tail", "cut", "sleep", "realpath", "cargo",
    ];
    for tool in tools {
        let found =
            Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap();
        let path = String::from_utf8(found.stdout).unwrap();
        std::os::unix::fs::symlink(path.trim(), bin.join(tool)).unwrap();
    }
    fs::write(bin.join("id"), "#!/bin/sh\necho 1000\n").unwrap();
    fs::set_permissions(bin.join("id"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let script = fs::read_to_string(script_copy.0.join("test")).unwrap();
    fs::write(script_copy.0.join("test"), script.replace("$PATH:/usr/sbin:/sbin", "$PATH"))
        .unwrap();

    let output =
        Command::new("bash").arg(script_copy.0.join("test")).env("PATH", &bin).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("sudo apt-get install --no-install-recommends"), "{stderr}");
    for package in ["mariadb-server", "redis-server", "python3-venv", "g++"] {
        assert!(stderr.contains(package), "{package}: {stderr}");
    }
}
