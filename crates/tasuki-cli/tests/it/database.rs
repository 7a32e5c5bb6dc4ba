//! `tasuki migrate` and `tasuki doctor`, on real databases.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tasuki_store::Store;

/// A new database that is dropped at the end of the test.
pub(crate) struct TestDatabase {
    pub(crate) url: String,
    server: Option<(String, String)>,
    pub(crate) folder: PathBuf,
}

const SECRET: &str = "s3cret-w0rd";

const APPLIED: &str = "\
applied 0001 initial
";

const REFUSED: &str = "\
exit 1
error: the database has schema version 99, but this tasuki supports only versions up to 1

hint: use the version of tasuki that migrated it, or a newer one; nothing was changed
";

impl TestDatabase {
    pub(crate) fn new(variable: Option<&str>) -> Self {
        let name = format!("tasuki_cli_{}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        let Some(variable) = variable else {
            let _ = std::fs::remove_dir_all(&folder); // left by a test that failed
            std::fs::create_dir_all(&folder).unwrap();
            let url = format!("sqlite:{}/test.db", folder.display());
            return Self { url, server: None, folder };
        };
        let server = std::env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: run ./test, which starts the server")
        });
        run_script(&server, &format!("create database {name}"));
        let (start, _) = server.rsplit_once('/').unwrap();
        Self { url: format!("{start}/{name}"), server: Some((server, name)), folder }
    }

    pub(crate) fn tasuki(&self, arguments: &[&str]) -> String {
        output_of(tasuki(arguments).args(["--database-url", &self.url]))
    }

    pub(crate) fn run_script(&self, text: &str) {
        run_script(&self.url, text);
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        match &self.server {
            Some((server, name)) => run_script(server, &format!("drop database {name}")),
            None => std::fs::remove_dir_all(&self.folder).unwrap(),
        }
    }
}

fn run_script(url: &str, text: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(url, 1).await.unwrap();
        store.execute_script(text).await.unwrap();
        store.close().await;
    });
}

fn tasuki(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tasuki"));
    command.args(arguments).env_remove("TASUKI_DATABASE_URL").stdin(Stdio::null());
    command
}

/// Runs a command and returns exit code, stdout and stderr as one text.
fn output_of(command: &mut Command) -> String {
    let output = command.output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let code = output.status.code().expect("not killed");
    format!("exit {code}\n{}{}", text(output.stdout), text(output.stderr))
}

/// Generates one test per database product from one function.
macro_rules! on_each_database {
    ($(fn $name:ident($database:ident) $body:block)+) => {
        $(mod $name {
            use super::*;

            fn check($database: &TestDatabase) $body

            #[test]
            fn sqlite() {
                check(&TestDatabase::new(None));
            }

            #[test]
            fn postgres() {
                check(&TestDatabase::new(Some("TASUKI_TEST_PG")));
            }

            #[test]
            fn mysql() {
                check(&TestDatabase::new(Some("TASUKI_TEST_MYSQL")));
            }
        })+
    };
}

on_each_database! {
    fn from_nothing_to_healthy(database) {
        if database.server.is_some() {
            let pending = APPLIED.replace("applied", "pending");
            let refused = format!("exit 1\n{pending}error: 1 migration is pending\n\nhint: run `tasuki migrate`\n");
            assert_eq!(database.tasuki(&["migrate", "--check"]), refused);
            let doctor = database.tasuki(&["doctor"]);
            assert!(doctor.starts_with("exit 1\nFOUND     schema"), "{doctor}");
            assert!(doctor.contains("error: the database contains no tables of tasuki\nnot done  triggers"), "{doctor}");
            assert!(doctor.ends_with("error: 1 finding\n\nhint: the other checks need a correct schema; run `tasuki migrate` first\n"), "{doctor}");
        }
        assert_eq!(database.tasuki(&["migrate"]), format!("exit 0\n{APPLIED}"));
        assert_eq!(database.tasuki(&["migrate"]), "exit 0\nthe schema is up to date, nothing to do\n");
        assert_eq!(database.tasuki(&["migrate", "--check"]), "exit 0\nthe schema is up to date\n");
        assert_eq!(database.tasuki(&["migrate", "--json"]), "exit 0\n{\n  \"applied\": []\n}\n");
        let doctor = database.tasuki(&["doctor"]);
        assert_eq!(doctor.lines().filter(|line| line.starts_with("ok ")).count() + 1, doctor.lines().count(), "{doctor}");
        assert!(doctor.starts_with("exit 0\n"), "{doctor}");
    }

    fn concurrent_migrations_apply_each_version_once(database) {
        let start = || {
            let mut command = tasuki(&["migrate", "--json", "--database-url", &database.url]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut applied = 0;
        for child in [start(), start(), start()] {
            let output = child.wait_with_output().unwrap();
            let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert_eq!(output.status.code(), Some(0), "{out}{error}");
            applied += out.matches("version").count();
        }
        assert_eq!(applied, 1, "each once");
        assert!(database.tasuki(&["doctor"]).starts_with("exit 0"));
    }

    fn a_newer_schema_is_refused(database) {
        database.tasuki(&["migrate"]);
        database.run_script("insert into tasuki_migration (version, name, checksum, applied_at) values (99, 'x', 'y', 1)");
        for arguments in [&["migrate"][..], &["migrate", "--check"], &["migrate", "--json"]] {
            assert_eq!(database.tasuki(arguments), REFUSED);
        }
        let doctor = database.tasuki(&["doctor"]);
        assert!(doctor.starts_with("exit 1\n") && doctor.contains("schema version 99"), "{doctor}");
    }

    fn a_finding_is_printed_as_text_and_as_json(database) {
        database.tasuki(&["migrate"]);
        for id in 1..=12 {
            database.run_script(&format!("insert into tasuki_run (id, job_id, job_version, origin, lane, exclusive, max_attempts, tries_allowed, scheduled_for, created_at) values ({id}, 1, 1, 'task', '', 0, 1, 1, 1, 1)"));
        }
        let words = database.tasuki(&["doctor"]);
        let expected = "FOUND     I19       rule: the due table contains all waiting runs and no other runs; all assigned or running runs have a lease, and no other runs have one
                    error: a waiting run is not in the due table, or its due row differs from the run (12: run 1, run 2, run 3, run 4, run 5, run 6, run 7, run 8, run 9, run 10, …)
error: 1 finding

hint: docs/operating/doctor.md describes each finding and its repair
";
        assert!(words.starts_with("exit 1\nok        schema") && words.ends_with(expected), "{words}");
        let json = database.tasuki(&["doctor", "--json"]);
        let (document, _) = json.strip_prefix("exit 1\n").unwrap().split_once("error: 1 finding").unwrap();
        let report: serde_json::Value = serde_json::from_str(document).unwrap();
        let found = report["checks"].as_array().unwrap().last().unwrap();
        assert_eq!((&report["clean"], &report["complete"]), (&false.into(), &true.into()));
        assert_eq!((&found["id"], &found["findings"][0]["count"]), (&"I19".into(), &12.into()));
        assert_eq!(found["findings"][0]["examples"].as_array().unwrap().len(), 10);
    }

    fn a_wrong_password_is_refused_and_not_shown(database) {
        let Some((server, name)) = &database.server else { return };
        let (scheme, rest) = server.split_once("://").unwrap();
        let host = rest.rsplit_once('@').unwrap().1.rsplit_once('/').unwrap().0;
        let url = format!("{scheme}://tasuki:{SECRET}@{host}/{name}");
        for verb in ["migrate", "doctor"] {
            let refused = output_of(&mut tasuki(&[verb, "--database-url", &url]));
            assert!(refused.starts_with(&format!("exit 1\nerror: cannot open {scheme}://tasuki@{host}/{name}: ")), "{refused}");
            assert!(refused.contains("\n\nhint: check that the server is running") && !refused.contains(SECRET), "{refused}");
        }
    }
}

#[test]
fn an_unreachable_server_is_reported_immediately() {
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://ann:{SECRET}@127.0.0.1:{port}/db");
        let began = Instant::now();
        let refused = output_of(&mut tasuki(&["doctor", "--database-url", &url]));
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        let expected = format!("exit 1\nerror: cannot open {scheme}://ann@127.0.0.1:{port}/db: ");
        assert!(refused.starts_with(&expected) && refused.contains("refused"), "{refused}");
        assert!(!refused.contains(SECRET), "{refused}");
    }
}

#[test]
fn a_url_that_names_no_database_is_bad_usage() {
    for url in [
        format!("oracle://ann:{SECRET}@host/db"),
        format!("postgres://ann:{SECRET}@host:port/db"),
        format!("mysql://ann:{SECRET}@host:port/db"),
        format!("postgres://ann:{SECRET}@host/db?sslmode={SECRET}"),
        format!("postgres://ann@host/db?password={SECRET}&sslmode={SECRET}"),
    ] {
        let refused = output_of(&mut tasuki(&["migrate", "--database-url", &url]));
        assert!(refused.starts_with("exit 2\nerror: database"), "{refused}");
        assert!(
            refused.contains("\n\nhint: a URL is sqlite:FILE") && !refused.contains(SECRET),
            "{refused}"
        );
    }
}

#[test]
fn the_url_comes_from_the_environment_and_is_not_shown() {
    let url = format!("oracle://ann:{SECRET}@host/db");
    for (arguments, code) in
        [(&["doctor"][..], 2), (&["doctor", "--help"], 0), (&["migrate", "--help"], 0)]
    {
        let output = output_of(tasuki(arguments).env("TASUKI_DATABASE_URL", &url));
        assert!(
            output.starts_with(&format!("exit {code}\n")) && !output.contains(SECRET),
            "{output}"
        );
    }
    // Without a URL it is the file in the data directory, which only `tasuki up` creates.
    let missing =
        output_of(tasuki(&["migrate", "--data", "/no/such/place"]).env_remove("TASUKI_DATA"));
    let expected = "exit 1\nerror: there is no database file /no/such/place/tasuki.db\n";
    assert!(missing.starts_with(expected), "{missing}");
}

#[test]
fn read_only_commands_create_no_file() {
    let database = TestDatabase::new(None);
    for arguments in [&["doctor"][..], &["migrate", "--check"]] {
        let refused = database.tasuki(arguments);
        let file = database.folder.join("test.db");
        assert!(
            refused.starts_with(&format!(
                "exit 1\nerror: there is no database file {}\n\nhint: ",
                file.display()
            )),
            "{refused}"
        );
        assert!(!file.exists());
    }
}
