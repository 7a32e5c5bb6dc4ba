//! Builds the launch request of a command from an attempt: arguments, environment, working directory. Pure.

use std::path::PathBuf;

use serde_json::Value;
use tasuki_core::work_spec::WorkAction;
use tasuki_core::{InvalidInput, LeaseToken, RunId, argv_template};

use super::attempt_input_and_result::Attempt;
use crate::node::config::Config;
use crate::spawner::{DATA_DIR_ID_ENV, LaunchSpec};

/// Maximum size of an argument, or of a variable with its name, in bytes; Linux refuses larger ones. One byte of it is
/// the terminating NUL, and in a variable one is the `=`.
const MAX_ARGUMENT_BYTES: usize = 128 << 10;

/// Paths of the files of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttemptPaths {
    /// File that the command may write its result to.
    pub(crate) result: PathBuf,
    /// File that the spawner writes the exit to until the worker acknowledges it.
    pub(crate) exit_record: PathBuf,
}

/// Builds the launch request of an attempt. `inherited` reads a variable of this worker's environment.
pub(crate) fn launch_spec(
    attempt: &Attempt,
    config: &Config,
    data_dir_id: &str,
    paths: &AttemptPaths,
    inherited: impl Fn(&str) -> Option<String>,
) -> Result<LaunchSpec, InvalidInput> {
    let work = &attempt.job.work;
    let mut directory = work.directory.clone().map(PathBuf::from);
    let mut env: Vec<(String, String)> = Vec::new();
    let mut set = |name: &str, value: String| env.push((name.to_owned(), value));
    for name in &config.environment {
        if let Some(value) = inherited(name) {
            set(name, value);
        }
    }
    let argv = match &work.action {
        WorkAction::Command(template) => {
            let filled = argv_template::command_argv(template, &attempt.args)?;
            config.check_program(&filled[0])?;
            filled
        }
        WorkAction::Django(command) => {
            let Some(django) = &config.django else {
                let expected = "a worker that is configured for a Django project";
                return Err(InvalidInput::with_described_value("kind", "django", expected));
            };
            // The configuration of the worker decides which code is loaded, not the job.
            if work.directory.is_some() {
                let expected = "no directory for a Django command: the worker configures it";
                return Err(InvalidInput::with_described_value(
                    "directory",
                    "a directory",
                    expected,
                ));
            }
            if let Some(name) = work.env.keys().find(|name| changes_loaded_code(name)) {
                let expected = "no variable that decides which code Django loads";
                return Err(InvalidInput::with_value("env", name, expected));
            }
            directory = Some(django.directory.clone());
            if let Some(settings) = &django.settings {
                set("DJANGO_SETTINGS_MODULE", settings.clone());
            }
            argv_template::django_argv(&django.start, command, &attempt.args)?
        }
        WorkAction::Function(_) => {
            return Err(InvalidInput::with_described_value("kind", "a function", "a command"));
        }
    };
    let started = &attempt.run;
    for (name, value) in &work.env {
        if config.allowed_programs.is_some() && changes_loaded_code(name) {
            let expected = "no variable that decides which program this worker runs";
            return Err(InvalidInput::with_value("env", name, expected));
        }
        set(name, value.clone());
    }
    let (run, attempt_no) = (started.id, started.attempt_no);
    set("TASUKI_RUN_ID", run.to_string());
    set("TASUKI_JOB", attempt.job.name.clone());
    set("TASUKI_ATTEMPT", attempt_no.to_string());
    set("TASUKI_SCHEDULED_FOR", started.scheduled_for.to_string());
    set("TASUKI_IDEMPOTENCY_KEY", idempotency_key_of_run(run));
    // Fencing token: it grows with every attempt of a run, so another system can refuse an attempt with a smaller one.
    set("TASUKI_FENCE", format!("{}", run.0.saturating_mul(1_000_000) + i64::from(attempt_no)));
    set("TASUKI_ARGS", Value::Object(attempt.args.clone()).to_string());
    set("TASUKI_RESULT_FILE", paths.result.display().to_string());
    if let Some(payload) = &attempt.event_payload {
        set("TASUKI_EVENT_PAYLOAD", payload.clone());
    }
    set(DATA_DIR_ID_ENV, data_dir_id.to_owned());
    for (name, value) in &env {
        if name.len() + value.len() + 2 > MAX_ARGUMENT_BYTES {
            let found = format!("{name} with {} bytes", value.len());
            let expected = "at most 131072 bytes for the name and the value of each variable";
            return Err(InvalidInput::with_described_value("environment", found, expected));
        }
    }
    if let Some(long) = argv.iter().find(|argument| argument.len() + 1 > MAX_ARGUMENT_BYTES) {
        let found = format!("an argument of {} bytes", long.len());
        return Err(InvalidInput::with_described_value(
            "arguments",
            found,
            "less than 131072 bytes for each argument",
        ));
    }
    let nul = argv.iter().chain(env.iter().map(|(_, value)| value)).any(|text| text.contains('\0'));
    if nul {
        return Err(InvalidInput::with_described_value(
            "arguments",
            "a NUL character",
            "text without one",
        ));
    }
    Ok(LaunchSpec {
        key: attempt.key(),
        token: token_to_hex(attempt.token),
        argv,
        env,
        work_dir: directory,
        exit_record: Some(paths.exit_record.clone()),
        result_file: Some(paths.result.clone()),
        capture_output: true,
    })
}

/// Idempotency key: the same for every attempt of a run, and different for every run. Another system can use it to
/// apply an action only once.
pub(crate) fn idempotency_key_of_run(run: RunId) -> String {
    format!("tasuki-run-{run}")
}

/// Whether a variable changes which program or code is loaded.
fn changes_loaded_code(name: &str) -> bool {
    let prefixes = ["LD_", "PYTHON", "DJANGO_"];
    name == "PATH" || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Formats a lease token for the spawner and its exit records.
pub(crate) fn token_to_hex(token: LeaseToken) -> String {
    token.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses a lease token from an exit record.
pub(crate) fn token_from_hex(text: &str) -> Option<LeaseToken> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use jiff::Timestamp;
    use serde_json::json;
    use tasuki_core::work_spec::{WorkAction, WorkSpec};
    use tasuki_core::{JobId, Origin, RunScope};
    use tasuki_store::StartedRun;

    use crate::node::worker::lease_table::tests::runnable_job;

    fn attempt(work: WorkSpec, args: &Value) -> Attempt {
        let started = StartedRun {
            id: RunId(7),
            job: JobId(1),
            job_version: 1,
            origin: Origin::Task,
            scope: RunScope::default(),
            scheduled_for: Timestamp::UNIX_EPOCH,
            due_at: Timestamp::UNIX_EPOCH,
            attempt_no: 2,
            tries: 2,
            event: None,
            args: Some(args.to_string()),
        };
        let token = LeaseToken::from_random(1);
        Attempt::new(token, started, Arc::new(runnable_job(work)), Some("{}".to_owned())).unwrap()
    }

    fn launched(work: WorkSpec, args: &Value, config: &Config) -> Result<LaunchSpec, String> {
        let paths = AttemptPaths { result: "/r".into(), exit_record: "/e".into() };
        let inherited =
            |name: &str| (name == "PATH" || name == "SECRET").then(|| "/bin".to_owned());
        launch_spec(&attempt(work, args), config, "home", &paths, inherited)
            .map_err(|error| error.to_string())
    }

    fn config() -> Config {
        Config::new("here".parse().unwrap())
    }

    fn shell(argument: &str) -> WorkSpec {
        WorkSpec::new(WorkAction::Command(vec!["echo".to_owned(), argument.to_owned()]))
    }

    #[test]
    fn command_gets_its_arguments_and_the_allowed_environment() {
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

    /// Otherwise the operating system would refuse the command, and retries would be in vain.
    #[test]
    fn arguments_too_long_for_the_system_are_invalid_input() {
        let most = MAX_ARGUMENT_BYTES - "BIG".len() - 2;
        for (length, fits) in [(most, true), (most + 1, false)] {
            let mut work = shell("x");
            work.env.insert("BIG".to_owned(), "x".repeat(length));
            let launched = launched(work, &json!({}), &config());
            assert_eq!(launched.is_ok(), fits, "{length}");
        }
        let error =
            launched(shell("{a}{a}"), &json!({"a": "x".repeat(MAX_ARGUMENT_BYTES / 2)}), &config());
        assert!(error.unwrap_err().starts_with("arguments: found an argument of 131072 bytes"));
    }

    #[test]
    fn only_configured_programs_and_projects_run() {
        let only_true = Config { allowed_programs: Some(["true".to_owned()].into()), ..config() };
        let error = launched(shell("x"), &json!({}), &only_true).unwrap_err();
        assert!(error.starts_with("command: found \"echo\""), "{error}");
        let django = WorkSpec::new(WorkAction::Django("check".to_owned()));
        let error = launched(django.clone(), &json!({}), &config()).unwrap_err();
        assert!(error.starts_with("kind: found django"), "{error}");
        let start = argv_template::DjangoConfig {
            python: "python3".to_owned(),
            manage: "manage.py".to_owned(),
        };
        let project = crate::node::config::DjangoProject {
            start,
            directory: "/srv/shop".into(),
            settings: Some("shop.settings".to_owned()),
        };
        let with = Config { django: Some(project), ..config() };
        let launch = launched(django, &json!({"args": ["a"]}), &with).unwrap();
        assert_eq!(launch.argv, ["python3", "manage.py", "check", "a"]);
        assert_eq!(launch.work_dir, Some("/srv/shop".into()));
        let check = || WorkSpec::new(WorkAction::Django("check".to_owned()));
        let elsewhere = WorkSpec { directory: Some("/evil".to_owned()), ..check() };
        let error = launched(elsewhere, &json!({}), &with).unwrap_err();
        assert!(error.starts_with("directory: "), "{error}");
        let variable = |name: &str| [(name.to_owned(), "/evil".to_owned())].into();
        let loaded = WorkSpec { env: variable("PYTHONPATH"), ..check() };
        let error = launched(loaded, &json!({}), &with).unwrap_err();
        assert!(error.starts_with("env: found \"PYTHONPATH\""), "{error}");
        let only_echo = Config { allowed_programs: Some(["echo".to_owned()].into()), ..config() };
        let widened = WorkSpec { env: variable("PATH"), ..shell("x") };
        let error = launched(widened, &json!({}), &only_echo).unwrap_err();
        assert!(error.starts_with("env: found \"PATH\""), "{error}");
    }

    #[test]
    fn lease_token_round_trips_through_hex() {
        let token = LeaseToken::from_random(99);
        assert_eq!(token_from_hex(&token_to_hex(token)), Some(token));
    }
}
