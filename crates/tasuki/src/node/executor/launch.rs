//! An attempt becomes a command: its argv, its environment, its folder. Pure.

use std::path::PathBuf;

use serde_json::Value;
use tasuki_core::job_spec::What;
use tasuki_core::{Invalid, LeaseToken, RunId, argv};

use super::attempt::Attempt;
use crate::node::config::Config;
use crate::spawner::{HOME, Launch};

/// A longer argument, or variable with its name, is refused by the operating system; one byte of it is the
/// end, and one stands between name and value.
const LONGEST: usize = 128 << 10;

/// Where the things of one attempt are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places {
    /// The file it may write its result to.
    pub(crate) result: PathBuf,
    /// Where its end is written while nobody has heard it.
    pub(crate) record: PathBuf,
}

/// The command of an attempt. `inherited` is this worker's environment.
pub(crate) fn command(
    attempt: &Attempt,
    config: &Config,
    home: &str,
    places: &Places,
    inherited: impl Fn(&str) -> Option<String>,
) -> Result<Launch, Invalid> {
    let work = &attempt.recipe.work;
    let mut directory = work.directory.clone().map(PathBuf::from);
    let mut env: Vec<(String, String)> = Vec::new();
    let mut set = |name: &str, value: String| env.push((name.to_owned(), value));
    for name in &config.environment {
        if let Some(value) = inherited(name) {
            set(name, value);
        }
    }
    let argv = match &work.what {
        What::Command(template) => {
            let filled = argv::command(template, &attempt.args)?;
            config.allows(&filled[0])?;
            filled
        }
        What::Django(command) => {
            let Some(django) = &config.django else {
                let expected = "a worker that is configured for a Django project";
                return Err(Invalid::described("kind", "django", expected));
            };
            // Which code is loaded is the worker's to say.
            if work.directory.is_some() {
                let expected = "none for a Django command: the worker knows its project";
                return Err(Invalid::described("directory", "one", expected));
            }
            if let Some(name) = work.env.keys().find(|name| decides_what_is_loaded(name)) {
                let expected = "no variable that decides which code Django loads";
                return Err(Invalid::typed("env", name, expected));
            }
            directory = Some(django.directory.clone());
            if let Some(settings) = &django.settings {
                set("DJANGO_SETTINGS_MODULE", settings.clone());
            }
            argv::django(&django.start, command, &attempt.args)?
        }
        What::Function(_) => {
            return Err(Invalid::described("kind", "a function", "a command"));
        }
    };
    let taken = &attempt.taken;
    for (name, value) in &work.env {
        if config.programs.is_some() && decides_what_is_loaded(name) {
            let expected = "no variable that decides which program this worker runs";
            return Err(Invalid::typed("env", name, expected));
        }
        set(name, value.clone());
    }
    let (run, attempt_no) = (taken.id, taken.attempt_no);
    set("TASUKI_RUN_ID", run.to_string());
    set("TASUKI_JOB", attempt.recipe.name.clone());
    set("TASUKI_ATTEMPT", attempt_no.to_string());
    set("TASUKI_SCHEDULED_FOR", taken.scheduled_for.to_string());
    set("TASUKI_IDEMPOTENCY_KEY", idempotency_key(run));
    // Grows with every attempt: who shows a smaller one has been overtaken.
    set("TASUKI_FENCE", format!("{}", run.0.saturating_mul(1_000_000) + i64::from(attempt_no)));
    set("TASUKI_ARGS", Value::Object(attempt.args.clone()).to_string());
    set("TASUKI_RESULT_FILE", places.result.display().to_string());
    if let Some(payload) = &attempt.event_payload {
        set("TASUKI_EVENT_PAYLOAD", payload.clone());
    }
    set(HOME, home.to_owned());
    for (name, value) in &env {
        if name.len() + value.len() + 2 > LONGEST {
            let found = format!("{name} with {} bytes", value.len());
            let expected = "variables of at most 131072 bytes with their names";
            return Err(Invalid::described("environment", found, expected));
        }
    }
    if let Some(long) = argv.iter().find(|argument| argument.len() + 1 > LONGEST) {
        let found = format!("one of {} bytes", long.len());
        return Err(Invalid::described("arguments", found, "each less than 131072 bytes"));
    }
    let nul = argv.iter().chain(env.iter().map(|(_, value)| value)).any(|text| text.contains('\0'));
    if nul {
        return Err(Invalid::described("arguments", "a NUL character", "text without one"));
    }
    Ok(Launch {
        job: attempt.key(),
        token: token_text(attempt.token),
        argv,
        env,
        directory,
        record: Some(places.record.clone()),
        result: Some(places.result.clone()),
        captured: true,
    })
}

/// The same for every attempt of a run, and of no other: what the job does elsewhere under it happens once.
pub(crate) fn idempotency_key(run: RunId) -> String {
    format!("tasuki-run-{run}")
}

/// Whether a variable decides which program or code a name stands for.
fn decides_what_is_loaded(name: &str) -> bool {
    let beginnings = ["LD_", "PYTHON", "DJANGO_"];
    name == "PATH" || beginnings.iter().any(|beginning| name.starts_with(beginning))
}

/// A lease's token as the spawner is told it, and as its records have it.
pub(crate) fn token_text(token: LeaseToken) -> String {
    token.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Back from that.
pub(crate) fn token_from(text: &str) -> Option<LeaseToken> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use jiff::Timestamp;
    use serde_json::json;
    use tasuki_core::job_spec::{What, Work};
    use tasuki_core::{JobId, Origin, Scope};
    use tasuki_store::Taken;

    use crate::node::worker::carry::tests::recipe;

    fn attempt(work: Work, args: &Value) -> Attempt {
        let taken = Taken {
            id: RunId(7),
            job: JobId(1),
            job_version: 1,
            origin: Origin::Task,
            scope: Scope::default(),
            scheduled_for: Timestamp::UNIX_EPOCH,
            due_at: Timestamp::UNIX_EPOCH,
            attempt_no: 2,
            tries: 2,
            event: None,
            args: Some(args.to_string()),
        };
        let token = LeaseToken::from_random(1);
        Attempt::new(token, taken, Arc::new(recipe(work)), Some("{}".to_owned())).unwrap()
    }

    fn launched(work: Work, args: &Value, config: &Config) -> Result<Launch, String> {
        let places = Places { result: "/r".into(), record: "/e".into() };
        let inherited =
            |name: &str| (name == "PATH" || name == "SECRET").then(|| "/bin".to_owned());
        command(&attempt(work, args), config, "home", &places, inherited)
            .map_err(|refused| refused.to_string())
    }

    fn config() -> Config {
        Config::new("here".parse().unwrap())
    }

    fn shell(argument: &str) -> Work {
        Work::new(What::Command(vec!["echo".to_owned(), argument.to_owned()]))
    }

    #[test]
    fn a_command_gets_its_arguments_and_only_what_is_allowed_of_the_environment() {
        let mut work = shell("{who}");
        work.args = json!({"who": "you", "n": 1}).as_object().unwrap().clone();
        work.env.insert("LANG".to_owned(), "ja_JP".to_owned());
        let launch = launched(work, &json!({"who": "me; rm -rf /"}), &config()).unwrap();
        assert_eq!(launch.argv, ["echo", "me; rm -rf /"]);
        let env: std::collections::BTreeMap<_, _> = launch.env.into_iter().collect();
        assert_eq!(env["PATH"], "/bin");
        assert_eq!(env["LANG"], "ja_JP");
        assert_eq!(env["TASUKI_RUN_ID"], "7");
        assert_eq!(env["TASUKI_ATTEMPT"], "2");
        assert_eq!(env["TASUKI_FENCE"], "7000002");
        assert_eq!(env["TASUKI_ARGS"], r#"{"n":1,"who":"me; rm -rf /"}"#);
        assert_eq!(env["TASUKI_EVENT_PAYLOAD"], "{}");
        assert!(!env.contains_key("SECRET"));
    }

    /// Otherwise the operating system would refuse it, and it would be tried again in vain.
    #[test]
    fn what_is_too_long_for_the_operating_system_is_bad_input() {
        let most = LONGEST - "BIG".len() - 2;
        for (length, fits) in [(most, true), (most + 1, false)] {
            let mut work = shell("x");
            work.env.insert("BIG".to_owned(), "x".repeat(length));
            let launched = launched(work, &json!({}), &config());
            assert_eq!(launched.is_ok(), fits, "{length}");
        }
        let refused = launched(shell("{a}{a}"), &json!({"a": "x".repeat(LONGEST / 2)}), &config());
        assert!(refused.unwrap_err().starts_with("arguments: found one of 131072 bytes"));
    }

    #[test]
    fn a_worker_runs_only_what_it_is_configured_for() {
        let only_true = Config { programs: Some(["true".to_owned()].into()), ..config() };
        let refused = launched(shell("x"), &json!({}), &only_true).unwrap_err();
        assert!(refused.starts_with("command: found \"echo\""), "{refused}");
        let django = Work::new(What::Django("check".to_owned()));
        let refused = launched(django.clone(), &json!({}), &config()).unwrap_err();
        assert!(refused.starts_with("kind: found django"), "{refused}");
        let start = argv::Django { python: "python3".to_owned(), manage: "manage.py".to_owned() };
        let project = crate::node::config::DjangoProject {
            start,
            directory: "/srv/shop".into(),
            settings: Some("shop.settings".to_owned()),
        };
        let with = Config { django: Some(project), ..config() };
        let launch = launched(django, &json!({"args": ["a"]}), &with).unwrap();
        assert_eq!(launch.argv, ["python3", "manage.py", "check", "a"]);
        assert_eq!(launch.directory, Some("/srv/shop".into()));
        let check = || Work::new(What::Django("check".to_owned()));
        let elsewhere = Work { directory: Some("/evil".to_owned()), ..check() };
        let refused = launched(elsewhere, &json!({}), &with).unwrap_err();
        assert!(refused.starts_with("directory: "), "{refused}");
        let variable = |name: &str| [(name.to_owned(), "/evil".to_owned())].into();
        let loaded = Work { env: variable("PYTHONPATH"), ..check() };
        let refused = launched(loaded, &json!({}), &with).unwrap_err();
        assert!(refused.starts_with("env: found \"PYTHONPATH\""), "{refused}");
        let only_echo = Config { programs: Some(["echo".to_owned()].into()), ..config() };
        let widened = Work { env: variable("PATH"), ..shell("x") };
        let refused = launched(widened, &json!({}), &only_echo).unwrap_err();
        assert!(refused.starts_with("env: found \"PATH\""), "{refused}");
    }

    #[test]
    fn a_token_reads_back() {
        let token = LeaseToken::from_random(99);
        assert_eq!(token_from(&token_text(token)), Some(token));
    }
}
