//! `tasuki cert dev`: the files that it creates, and the files that it does not overwrite.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use insta::assert_snapshot;

/// A directory that is removed at the end of the test.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tasuki-cert-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    /// Runs `tasuki cert dev` and returns exit code, stdout and stderr as one text, without varying parts.
    fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_tasuki"))
            .args(["cert", "dev", "--dir"])
            .arg(&self.0)
            .args(arguments)
            .output()
            .expect("the binary runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        let printed = format!("{}{}", text(output.stdout), text(output.stderr));
        let printed = printed.replace(&self.0.display().to_string(), "DIR");
        let lines = printed.lines().map(|line| match line.split_once("valid until ") {
            Some((before, _)) => format!("{before}valid until WHEN\n"),
            None => format!("{line}\n"),
        });
        format!("exit {}\n{}", output.status.code().expect("not killed"), lines.collect::<String>())
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap()
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn cert_dev_creates_an_authority_and_certificates() {
    let folder = TestFolder::new("make");
    assert_snapshot!(folder.run(&["--node", "one", "--node", "two", "--node", "one"]), @r#"
    exit 0
    created authority DIR/ca.crt
    created tasuki://tasuki/node/one in DIR/one
    created tasuki://tasuki/node/two in DIR/two
    created tasuki://tasuki/observer/observer in DIR/observer
    valid until WHEN

    copy the three files of each node's directory to /etc/tasuki/tls on that node
    to inspect a node: grpcurl -cacert DIR/observer/ca.crt -cert DIR/observer/tls.crt -key DIR/observer/tls.key localhost:PORT list
    "#);
    for name in ["one", "two", "observer"] {
        let node_folder = folder.0.join(name);
        assert_eq!(mode(&node_folder), 0o700, "{name}");
        assert_eq!(mode(&node_folder.join("tls.key")), 0o600, "{name}");
        assert!(folder.read(&format!("{name}/tls.crt")).starts_with("-----BEGIN CERTIFICATE-----"));
        assert_eq!(folder.read(&format!("{name}/ca.crt")), folder.read("ca.crt"), "{name}");
    }
    assert_eq!(mode(&folder.0.join("ca.key")), 0o600);
}

#[test]
fn cert_dev_adds_a_node_and_overwrites_nothing() {
    let folder = TestFolder::new("add");
    folder.run(&["--node", "one"]);
    let (authority, one) = (folder.read("ca.crt"), folder.read("one/tls.crt"));
    assert_snapshot!(folder.run(&["--node", "two", "--node", "one"]), @r#"
    exit 1
    error: DIR/one/tls.crt already exists

    hint: --force replaces all files, including the authority; --node with a new name adds a node
    "#);
    assert!(!folder.0.join("two").exists(), "no file is created if one of them exists");
    assert_snapshot!(folder.run(&["--node", "two"]), @r#"
    exit 0
    used existing authority DIR/ca.crt
    created tasuki://tasuki/node/two in DIR/two
    valid until WHEN

    copy the three files of each node's directory to /etc/tasuki/tls on that node
    "#);
    assert_eq!(folder.read("ca.crt"), authority, "the authority is unchanged");
    assert_eq!(folder.read("one/tls.crt"), one);
    assert_eq!(folder.read("two/ca.crt"), authority);
    fs::write(folder.0.join("ca.crt"), folder.read("one/tls.crt")).unwrap();
    let output = folder.run(&["--node", "three"]);
    assert!(
        output.starts_with("exit 1\n") && output.contains("the existing authority cannot be used"),
        "{output}"
    );
    folder.run(&["--node", "one", "--force"]);
    assert_ne!(folder.read("ca.crt"), authority);
    assert_ne!(folder.read("one/tls.crt"), one);
}

#[test]
fn cert_dev_refuses_invalid_names() {
    let folder = TestFolder::new("names");
    assert_snapshot!(folder.run(&["--node", "../up"]), @r#"
    exit 2
    error: name "../up" must consist of letters, digits, dots, hyphens and underscores, and not start with a dot
    "#);
    assert_snapshot!(folder.run(&["--node", "observer"]), @r#"
    exit 2
    error: no node can have the name "observer": the directory "observer" contains the certificate of the observer
    "#);
    assert!(folder.run(&["--cluster", "a b"]).starts_with("exit 2\n"));
    assert!(folder.run(&["--days", "0"]).starts_with("exit 2\n"));
    assert!(!folder.0.exists());
}

#[test]
fn cert_dev_prints_json() {
    let folder = TestFolder::new("json");
    let output = folder.run(&["--json", "--days", "1"]);
    let output = output.strip_prefix("exit 0\n").unwrap();
    let made: serde_json::Value = serde_json::from_str(output).unwrap();
    assert_eq!(made["authority"], "DIR/ca.crt");
    assert_eq!(made["certificates"][0]["identity"], "tasuki://tasuki/node/node");
    assert_eq!(made["certificates"][1]["role"], "observer");
    assert!(made["expires_at"].is_string());
}
