//! `tasuki cert dev`: what it makes, and what it leaves alone.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use insta::assert_snapshot;

/// A folder that goes away with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tasuki-cert-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    /// Exit code, stdout and stderr as one text, without what differs from run to run.
    fn told(&self, arguments: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_tasuki"))
            .args(["cert", "dev", "--dir"])
            .arg(&self.0)
            .args(arguments)
            .output()
            .expect("the binary runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        let told = format!("{}{}", text(output.stdout), text(output.stderr));
        let told = told.replace(&self.0.display().to_string(), "DIR");
        let lines = told.lines().map(|line| match line.split_once("good until ") {
            Some((before, _)) => format!("{before}good until WHEN\n"),
            None => format!("{line}\n"),
        });
        format!("exit {}\n{}", output.status.code().expect("not killed"), lines.collect::<String>())
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn cert_dev_makes_an_authority_and_certificates() {
    let folder = Folder::new("make");
    assert_snapshot!(folder.told(&["--node", "one", "--node", "two", "--node", "one"]), @r#"
    exit 0
    made the authority DIR/ca.crt
    made tasuki://tasuki/node/one in DIR/one
    made tasuki://tasuki/node/two in DIR/two
    made tasuki://tasuki/observer/observer in DIR/observer
    good until WHEN

    a node shows what is in /etc/tasuki/tls: put the three files of its folder there
    to look at a node: grpcurl -cacert DIR/observer/ca.crt -cert DIR/observer/tls.crt -key DIR/observer/tls.key localhost:PORT list
    "#);
    for name in ["one", "two", "observer"] {
        let of = folder.0.join(name);
        assert_eq!(mode(&of), 0o700, "{name}");
        assert_eq!(mode(&of.join("tls.key")), 0o600, "{name}");
        assert!(folder.read(&format!("{name}/tls.crt")).starts_with("-----BEGIN CERTIFICATE-----"));
        assert_eq!(folder.read(&format!("{name}/ca.crt")), folder.read("ca.crt"), "{name}");
    }
    assert_eq!(mode(&folder.0.join("ca.key")), 0o600);
}

#[test]
fn cert_dev_adds_a_node_and_overwrites_nothing() {
    let folder = Folder::new("add");
    folder.told(&["--node", "one"]);
    let (authority, one) = (folder.read("ca.crt"), folder.read("one/tls.crt"));
    assert_snapshot!(folder.told(&["--node", "two", "--node", "one"]), @r#"
    exit 1
    error: DIR/one/tls.crt is already there

    hint: --force replaces all of it; another --node is added to what is there
    "#);
    assert!(!folder.0.join("two").exists(), "nothing is made if not all of it can be");
    assert_snapshot!(folder.told(&["--node", "two"]), @r#"
    exit 0
    used the authority DIR/ca.crt
    made tasuki://tasuki/node/two in DIR/two
    good until WHEN

    a node shows what is in /etc/tasuki/tls: put the three files of its folder there
    "#);
    assert_eq!(folder.read("ca.crt"), authority, "it is kept");
    assert_eq!(folder.read("one/tls.crt"), one);
    assert_eq!(folder.read("two/ca.crt"), authority);
    fs::write(folder.0.join("ca.crt"), folder.read("one/tls.crt")).unwrap();
    let told = folder.told(&["--node", "three"]);
    assert!(told.starts_with("exit 1\n") && told.contains("the authority will not do"), "{told}");
    folder.told(&["--node", "one", "--force"]);
    assert_ne!(folder.read("ca.crt"), authority);
    assert_ne!(folder.read("one/tls.crt"), one);
}

#[test]
fn cert_dev_refuses_names_that_cannot_be_one() {
    let folder = Folder::new("names");
    assert_snapshot!(folder.told(&["--node", "../up"]), @r#"
    exit 2
    error: name "../up" should be letters, digits, dots, hyphens and underscores, no dot in front
    "#);
    assert_snapshot!(folder.told(&["--node", "observer"]), @r#"
    exit 2
    error: the folder "observer" is the observer's
    "#);
    assert!(folder.told(&["--cluster", "a b"]).starts_with("exit 2\n"));
    assert!(folder.told(&["--days", "0"]).starts_with("exit 2\n"));
    assert!(!folder.0.exists());
}

#[test]
fn cert_dev_speaks_json() {
    let folder = Folder::new("json");
    let told = folder.told(&["--json", "--days", "1"]);
    let told = told.strip_prefix("exit 0\n").unwrap();
    let made: serde_json::Value = serde_json::from_str(told).unwrap();
    assert_eq!(made["authority"], "DIR/ca.crt");
    assert_eq!(made["certificates"][0]["identity"], "tasuki://tasuki/node/node");
    assert_eq!(made["certificates"][1]["role"], "observer");
    assert!(made["expires_at"].is_string());
}
