//! Tests of the concurrency policies with real processes.

use std::path::Path;
use std::time::Duration;

use tasuki::HandlerRegistry;
use tasuki::node::Node;
use tasuki_core::RunState;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::work_spec::{COMMAND_LANE, WorkSpec};
use tasuki_store::{Job, JobVersionSpec, NewRun, Run, Trigger, Writer};

use crate::node_fixture::{NodeFixture, every_trigger, shell, spec};

fn spec_with_policy(policy: ConcurrencyPolicy, work: &WorkSpec) -> JobVersionSpec {
    JobVersionSpec { concurrency: policy, ..spec(work) }
}

/// A command that logs its begin, waits until the test lets it end, and logs its end.
fn command_until_go(data: &Path) -> WorkSpec {
    let data = data.display();
    shell(&format!(
        "echo begin $TASUKI_RUN_ID >> {data}/story; while [ ! -e {data}/go ]; do sleep 0.02; done; echo end $TASUKI_RUN_ID >> {data}/story"
    ))
}

impl NodeFixture {
    fn read_story(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.join("story")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn let_commands_end(&self) {
        std::fs::write(self.dir.join("go"), "").unwrap();
    }

    /// Creates several runs of one job in one statement.
    async fn submit_count(&self, job: &Job, count: usize) -> Vec<tasuki_core::RunId> {
        let runs = vec![NewRun::task(&job.newest); count];
        let made = self.store.create_or_find_runs(Writer::Api, &runs).await.unwrap();
        self.wakeups.wake_all();
        made.into_iter().map(|made| made.run).collect()
    }

    async fn wait_until_running(&self, run: tasuki_core::RunId) -> Run {
        self.wait_until(&format!("run {run} runs"), async || {
            let run = self.store.find_run(run).await.unwrap().unwrap();
            (run.state == RunState::Running).then_some(run)
        })
        .await
    }

    async fn stop_and_finish(self, node: Node) {
        node.stop().await;
        self.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forbid_skips_the_slots_that_come_while_it_runs() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let work = command_until_go(&fixture.dir);
    let job = fixture
        .create_job(
            "slow",
            every_trigger("1s", None),
            spec_with_policy(ConcurrencyPolicy::Forbid, &work),
        )
        .await;
    let skipped = fixture.wait_for_runs(job.id, 2, |state| state == RunState::Skipped).await;
    for run in &skipped {
        assert_eq!(run.reason.as_deref(), Some("CONCURRENT"), "{run:?}");
        assert_eq!((run.counters.tries, run.started_at), (0, None));
    }
    assert_eq!(fixture.read_story().len(), 1, "one began, none ended");
    fixture.let_commands_end();
    let ended = fixture.wait_for_runs(job.id, 2, |state| state == RunState::Succeeded).await;
    assert!(
        ended[0].id < skipped[0].id && ended[1].id > skipped[1].id,
        "the next slot runs after the first run has ended"
    );
    fixture.stop_and_finish(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forbid_lets_tasks_wait_for_their_turn() {
    for claimed in [false, true] {
        let fixture = NodeFixture::new().await;
        let node = fixture.start_node().await;
        let mut spec = spec_with_policy(ConcurrencyPolicy::Forbid, &command_until_go(&fixture.dir));
        if claimed {
            spec.lane = COMMAND_LANE.to_owned();
        }
        let job = fixture.create_job("slow", Trigger::Task, spec).await;
        let tasks = fixture.submit_count(&job, 3).await;
        fixture
            .wait_until("one begins", async || (fixture.read_story().len() == 1).then_some(()))
            .await;
        let all = fixture.wait_for_runs(job.id, 3, |_| true).await;
        let waiting = all.iter().filter(|run| run.state == RunState::Pending).count();
        assert_eq!(waiting, 2, "{all:?}");
        fixture.let_commands_end();
        let mut expected = Vec::new();
        for task in tasks {
            assert_eq!(fixture.wait_until_ended(task).await.state, RunState::Succeeded);
            expected.extend([format!("begin {task}"), format!("end {task}")]);
        }
        assert_eq!(fixture.read_story(), expected, "one after the other");
        fixture.stop_and_finish(node).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn allow_lets_runs_overlap() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let work = command_until_go(&fixture.dir);
    let job = fixture
        .create_job(
            "slow",
            every_trigger("1s", None),
            spec_with_policy(ConcurrencyPolicy::Allow, &work),
        )
        .await;
    let running = fixture.wait_for_runs(job.id, 3, |state| state == RunState::Running).await;
    fixture.wait_until("all begin", async || (fixture.read_story().len() >= 3).then_some(())).await;
    assert!(fixture.read_story().iter().all(|line| line.starts_with("begin")));
    fixture.let_commands_end();
    for run in running {
        assert_eq!(fixture.wait_until_ended(run.id).await.state, RunState::Succeeded);
    }
    fixture.stop_and_finish(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replace_starts_the_newest_after_the_older_has_ended() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let (data, pid) = (fixture.dir.display(), fixture.dir.join("pid"));
    // The first run and its child ignore SIGTERM; a later run checks whether they are still alive.
    let script = format!(
        "if [ -e {data}/pid ]; then kill -0 -- -$(cat {data}/pid) && exit 3; exit 0; fi
         trap '' TERM; sh -c 'sleep 60' & echo $$ > {data}/pid.new; mv {data}/pid.new {data}/pid; wait"
    );
    let work = WorkSpec { stop_grace: Some(Duration::from_millis(700)), ..shell(&script) };
    let spec = spec_with_policy(ConcurrencyPolicy::Replace, &work);
    let job = fixture.create_job("sync", Trigger::Task, spec).await;
    let first = fixture.submit(&job, None).await;
    fixture.wait_until_running(first).await;
    fixture.wait_until("the first run has begun", async || pid.exists().then_some(())).await;
    let later = fixture.submit_count(&job, 3).await;

    let first = fixture.wait_until_ended(first).await;
    assert_eq!(first.state, RunState::Canceled, "{first:?}");
    for run in &later[..2] {
        let run = fixture.wait_until_ended(*run).await;
        assert_eq!((run.state, run.counters.tries), (RunState::Canceled, 0), "{run:?}");
    }
    let newest = fixture.wait_until_ended(later[2]).await;
    assert_eq!(newest.state, RunState::Succeeded, "{:?}", fixture.read_log(newest.id).await);
    assert!(newest.started_at >= first.finished_at);
    fixture.stop_and_finish(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replace_cancels_the_running_run_at_the_next_slot() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let spec = spec_with_policy(ConcurrencyPolicy::Replace, &shell("exec sleep 60"));
    let job = fixture.create_job("watch", every_trigger("1s", None), spec).await;
    // On a busy machine a slot may come before the run of the last one has begun.
    let begun = async || {
        let canceled = fixture.wait_for_runs(job.id, 2, |state| state == RunState::Canceled).await;
        let begun: Vec<_> = canceled.into_iter().filter(|run| run.counters.tries == 1).collect();
        (begun.len() >= 2).then_some(begun)
    };
    let canceled = fixture.wait_until("two runs that had begun are canceled", begun).await;
    let next = fixture.wait_for_runs(job.id, 1, |state| state == RunState::Running).await;
    assert!(next[0].id > canceled[1].id);
    let job = fixture.store.find_job_by_id(job.id).await.unwrap().unwrap();
    crate::node_fixture::expect_applied(
        fixture.store.disable_job("test", job.expected_version()).await,
    );
    let by = "test";
    for run in fixture.wait_for_runs(job.id, 1, |state| state == RunState::Running).await {
        let _ = fixture.store.cancel(Writer::Api, run.id, by, None).await.unwrap();
        fixture.wakeups.wake_all();
        fixture.wait_until_ended(run.id).await;
    }
    fixture.stop_and_finish(node).await;
}

/// Claimed commands do not use the slots that the leader counts on for assigned ones.
#[tokio::test(flavor = "multi_thread")]
async fn claimed_commands_leave_slots_for_assigned_ones() {
    let fixture = NodeFixture::new().await;
    let node = fixture
        .start_configured_node(HandlerRegistry::default(), |config| config.slots = Some(1))
        .await;
    let lane = COMMAND_LANE.to_owned();
    let claimed = JobVersionSpec { lane, ..spec(&command_until_go(&fixture.dir)) };
    let claimed = fixture.create_job("claimed", Trigger::Task, claimed).await;
    let first = fixture.submit_count(&claimed, 2).await[0];
    fixture.wait_until_running(first).await;
    let assigned = fixture.create_task_job("assigned", &shell("true")).await;
    let run = fixture.submit_count(&assigned, 1).await[0];
    let ended = fixture.wait_until_ended(run).await;
    assert_eq!((ended.state, ended.counters.releases), (RunState::Succeeded, 0));
    assert_eq!(fixture.read_story().len(), 1, "one claimed command runs, and one waits");
    fixture.let_commands_end();
    fixture.stop_and_finish(node).await;
}
