//! `tasuki migrate` and `tasuki doctor`, on real databases.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tasuki_store::Store;

/// A database of its own, removed in the end.
pub(crate) struct Place {
    pub(crate) url: String,
    server: Option<(String, String)>,
    pub(crate) folder: PathBuf,
}

const SECRET: &str = "s3cret-w0rd";

const APPLIED: &str = "\
applied 0001 runs
applied 0002 people_and_places
applied 0003 records
applied 0004 rules
applied 0005 views
applied 0006 event_jobs
applied 0007 job_now
applied 0008 stretches
";

const REFUSED: &str = "\
exit 1
error: the database has schema 99, but this tasuki knows only up to 8

hint: use the tasuki that made it or a newer one; nothing was changed
";

impl Place {
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
        script(&server, &format!("create database {name}"));
        let (start, _) = server.rsplit_once('/').unwrap();
        Self { url: format!("{start}/{name}"), server: Some((server, name)), folder }
    }

    pub(crate) fn tasuki(&self, arguments: &[&str]) -> String {
        told(tasuki(arguments).args(["--database-url", &self.url]))
    }

    pub(crate) fn script(&self, text: &str) {
        script(&self.url, text);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        match &self.server {
            Some((server, name)) => script(server, &format!("drop database {name}")),
            None => std::fs::remove_dir_all(&self.folder).unwrap(),
        }
    }
}

fn script(url: &str, text: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(url, 1).await.unwrap();
        store.script(text).await.unwrap();
        store.close().await;
    });
}

fn tasuki(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tasuki"));
    command.args(arguments).env_remove("TASUKI_DATABASE_URL").stdin(Stdio::null());
    command
}

/// Exit code, stdout and stderr as one text.
fn told(command: &mut Command) -> String {
    let output = command.output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let code = output.status.code().expect("not killed");
    format!("exit {code}\n{}{}", text(output.stdout), text(output.stderr))
}

/// Makes one test for each database from one function.
macro_rules! on_each_database {
    ($(fn $name:ident($place:ident) $body:block)+) => {
        $(mod $name {
            use super::*;

            fn on($place: &Place) $body

            #[test]
            fn sqlite() {
                on(&Place::new(None));
            }

            #[test]
            fn postgres() {
                on(&Place::new(Some("TASUKI_TEST_PG")));
            }

            #[test]
            fn mysql() {
                on(&Place::new(Some("TASUKI_TEST_MYSQL")));
            }
        })+
    };
}

on_each_database! {
    fn from_nothing_to_healthy(place) {
        if place.server.is_some() {
            let pending = APPLIED.replace("applied", "pending");
            let refused = format!("exit 1\n{pending}error: 8 migrations are pending\n\nhint: tasuki migrate applies what is pending\n");
            assert_eq!(place.tasuki(&["migrate", "--check"]), refused);
            let doctor = place.tasuki(&["doctor"]);
            assert!(doctor.starts_with("exit 1\nFOUND     schema"), "{doctor}");
            assert!(doctor.contains("error: there are no tables of tasuki here\nnot done  triggers"), "{doctor}");
            assert!(doctor.ends_with("error: 1 finding\n\nhint: the rest can be looked at once the schema is right: tasuki migrate\n"), "{doctor}");
        }
        assert_eq!(place.tasuki(&["migrate"]), format!("exit 0\n{APPLIED}"));
        assert_eq!(place.tasuki(&["migrate"]), "exit 0\nthe schema is up to date, nothing to do\n");
        assert_eq!(place.tasuki(&["migrate", "--check"]), "exit 0\nthe schema is up to date\n");
        assert_eq!(place.tasuki(&["migrate", "--json"]), "exit 0\n{\n  \"applied\": []\n}\n");
        let doctor = place.tasuki(&["doctor"]);
        assert_eq!(doctor.lines().filter(|line| line.starts_with("ok ")).count() + 1, doctor.lines().count(), "{doctor}");
        assert!(doctor.starts_with("exit 0\n"), "{doctor}");
    }

    fn two_processes_that_migrate_at_once_take_turns(place) {
        let start = || {
            let mut command = tasuki(&["migrate", "--json", "--database-url", &place.url]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut applied = 0;
        for child in [start(), start(), start()] {
            let output = child.wait_with_output().unwrap();
            let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert_eq!(output.status.code(), Some(0), "{out}{error}");
            applied += out.matches("version").count();
        }
        assert_eq!(applied, 8, "each once");
        assert!(place.tasuki(&["doctor"]).starts_with("exit 0"));
    }

    fn a_newer_schema_is_refused(place) {
        place.tasuki(&["migrate"]);
        place.script("insert into tasuki_migration (version, name, checksum, applied_at) values (99, 'x', 'y', 1)");
        for arguments in [&["migrate"][..], &["migrate", "--check"], &["migrate", "--json"]] {
            assert_eq!(place.tasuki(arguments), REFUSED);
        }
        let doctor = place.tasuki(&["doctor"]);
        assert!(doctor.starts_with("exit 1\n") && doctor.contains("schema 99"), "{doctor}");
    }

    fn a_finding_is_told_in_words_and_as_json(place) {
        place.tasuki(&["migrate"]);
        for id in 1..=12 {
            place.script(&format!("insert into tasuki_run (id, job_id, job_version, origin, lane, exclusive, max_attempts, tries_allowed, scheduled_for, created_at) values ({id}, 1, 1, 'task', '', 0, 1, 1, 1, 1)"));
        }
        let words = place.tasuki(&["doctor"]);
        let told = "FOUND     I19       a run is in due exactly while it waits, under a lease exactly while it is carried
                    error: a run waits but is not in due as it should be (12: run 1, run 2, run 3, run 4, run 5, run 6, run 7, run 8, run 9, run 10, …)
error: 1 finding

hint: docs/operating/doctor.md says what each means and what to do
";
        assert!(words.starts_with("exit 1\nok        schema") && words.ends_with(told), "{words}");
        let json = place.tasuki(&["doctor", "--json"]);
        let (document, _) = json.strip_prefix("exit 1\n").unwrap().split_once("error: 1 finding").unwrap();
        let report: serde_json::Value = serde_json::from_str(document).unwrap();
        let found = report["checks"].as_array().unwrap().last().unwrap();
        assert_eq!((&report["clean"], &report["complete"]), (&false.into(), &true.into()));
        assert_eq!((&found["id"], &found["findings"][0]["count"]), (&"I19".into(), &12.into()));
        assert_eq!(found["findings"][0]["examples"].as_array().unwrap().len(), 10);
    }

    fn a_wrong_password_is_refused_and_not_shown(place) {
        let Some((server, name)) = &place.server else { return };
        let (scheme, rest) = server.split_once("://").unwrap();
        let host = rest.rsplit_once('@').unwrap().1.rsplit_once('/').unwrap().0;
        let url = format!("{scheme}://tasuki:{SECRET}@{host}/{name}");
        for verb in ["migrate", "doctor"] {
            let refused = told(&mut tasuki(&[verb, "--database-url", &url]));
            assert!(refused.starts_with(&format!("exit 1\nerror: cannot open {scheme}://tasuki@{host}/{name}: ")), "{refused}");
            assert!(refused.contains("\n\nhint: is the server running") && !refused.contains(SECRET), "{refused}");
        }
    }
}

#[test]
fn a_server_that_is_not_there_is_told_at_once() {
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://ann:{SECRET}@127.0.0.1:{port}/db");
        let began = Instant::now();
        let refused = told(&mut tasuki(&["doctor", "--database-url", &url]));
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        let told = format!("exit 1\nerror: cannot open {scheme}://ann@127.0.0.1:{port}/db: ");
        assert!(refused.starts_with(&told) && refused.contains("refused"), "{refused}");
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
        let refused = told(&mut tasuki(&["migrate", "--database-url", &url]));
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
        let said = told(tasuki(arguments).env("TASUKI_DATABASE_URL", &url));
        assert!(said.starts_with(&format!("exit {code}\n")) && !said.contains(SECRET), "{said}");
    }
    // Without one it is the file in the data directory, which only `up` makes.
    let missing = told(tasuki(&["migrate", "--data", "/no/such/place"]).env_remove("TASUKI_DATA"));
    let expected = "exit 1\nerror: there is no database file /no/such/place/tasuki.db\n";
    assert!(missing.starts_with(expected), "{missing}");
}

#[test]
fn looking_makes_no_file() {
    let place = Place::new(None);
    for arguments in [&["doctor"][..], &["migrate", "--check"]] {
        let refused = place.tasuki(arguments);
        let file = place.folder.join("test.db");
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
