//! Sample jobs of `tasuki up --demo`. They show schedules, events, arguments, results, retries and long output.

use std::time::Duration;

use serde_json::json;
use tasuki::Operator;
use tasuki::operator::{AccessRole, Actor, Error, JobDraft};
use tasuki_core::Schedule;
use tasuki_core::schedule::{DstRuleOverrides, ScheduleKind};
use tasuki_core::work_spec::{WorkAction, WorkSpec};
use tasuki_store::Trigger;

/// Creates the sample jobs that do not exist yet.
pub(crate) async fn create_demo_jobs(operator: &Operator) -> Result<(), Error> {
    let actor =
        Actor { name: "tasuki up --demo".to_owned(), address: None, role: AccessRole::Admin };
    for (name, draft) in sample_jobs()? {
        match operator.create_job(&actor, name, &draft).await {
            Ok(_) => {}
            Err(Error::NameTaken { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn sample_jobs() -> Result<Vec<(&'static str, JobDraft)>, Error> {
    let shell = |script: &str, about: &str| WorkSpec {
        description: Some(about.to_owned()),
        ..WorkSpec::new(WorkAction::Command(["sh", "-c", script].map(str::to_owned).to_vec()))
    };
    let time_trigger = |kind: ScheduleKind, value: &str| -> Result<Trigger, Error> {
        let schedule = Schedule::parse(kind, value, "UTC", DstRuleOverrides::default())?;
        Ok(Trigger::Time { schedule, misfire: None })
    };
    let hello = JobDraft {
        trigger: time_trigger(ScheduleKind::Every, "10s")?,
        ..JobDraft::new(shell("echo \"hello, it is $(date)\"", "prints the time every ten seconds"))
    };
    let report = JobDraft {
        trigger: time_trigger(ScheduleKind::DailyAt, "03:30")?,
        ..JobDraft::new(WorkSpec {
            args: json!({"day": "yesterday"}).as_object().cloned().unwrap_or_default(),
            ..shell(
                "echo \"report for $0\"; printf '{\"rows_affected\": 42, \"result\": {\"pages\": 3}}' > \"$TASUKI_RESULT_FILE\"",
                "runs every night, takes an argument and writes a result",
            )
        })
    };
    let flaky = JobDraft {
        trigger: time_trigger(ScheduleKind::Every, "1m")?,
        max_retries: Some(3),
        backoff: Some(Duration::from_secs(2)),
        ..JobDraft::new(shell(
            "echo \"attempt $TASUKI_ATTEMPT\"; [ \"$TASUKI_ATTEMPT\" -ge 3 ] || { echo 'not yet' >&2; exit 75; }",
            "fails twice and succeeds at the third attempt",
        ))
    };
    let order = JobDraft {
        trigger: Trigger::Event { types: ["order.*".to_owned()].into(), filter: None },
        ..JobDraft::new(shell(
            "echo \"order event: $TASUKI_EVENT_PAYLOAD\"",
            "runs for every event order.…, for example `tasuki event emit order.paid --payload '{\"id\": 1}'`",
        ))
    };
    let slow = JobDraft {
        ..JobDraft::new(shell(
            "for step in 1 2 3 4 5 6 7 8 9 10; do echo \"step $step of 10\"; sleep 2; done",
            "runs for twenty seconds on request: `tasuki job trigger demo-slow`, then `tasuki run logs -f ID`",
        ))
    };
    let mut report = report;
    if let WorkAction::Command(argv) = &mut report.work.action {
        argv.push("{day}".to_owned());
    }
    Ok(vec![
        ("demo-hello", hello),
        ("demo-report", report),
        ("demo-flaky", flaky),
        ("demo-order", order),
        ("demo-slow", slow),
    ])
}
