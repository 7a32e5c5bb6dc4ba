//! Two runs of one job at once, with real processes.

use std::path::Path;
use std::time::Duration;

use tasuki::Functions;
use tasuki::node::Node;
use tasuki_core::RunState;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::job_spec::{COMMAND_LANE, Work};
use tasuki_store::{Writer, Job, JobSpec, NewRun, Run, Trigger};

use crate::place::{Place, every, shell, spec};

fn with(policy: ConcurrencyPolicy, work: &Work) -> JobSpec {
    JobSpec { concurrency: policy, ..spec(work) }
}

/// Says that it begins, waits until the test lets it go on, says that it ends.
fn waits_for(data: &Path) -> Work {
    let data = data.display();
    shell(&format!(
        "echo begin $TASUKI_RUN_ID >> {data}/story; while [ ! -e {data}/go ]; do sleep 0.02; done; echo end $TASUKI_RUN_ID >> {data}/story"
    ))
}

impl Place {
    fn story(&self) -> Vec<String> {
        let told = std::fs::read_to_string(self.data.join("story")).unwrap_or_default();
        told.lines().map(str::to_owned).collect()
    }

    fn go_on(&self) {
        std::fs::write(self.data.join("go"), "").unwrap();
    }

    /// Runs of one job, made in one moment.
    async fn submit_some(&self, job: &Job, count: usize) -> Vec<tasuki_core::RunId> {
        let runs = vec![NewRun::task(&job.newest); count];
        let made = self.store.create(Writer::Api, &runs).await.unwrap();
        self.wake.all();
        made.into_iter().map(|made| made.run).collect()
    }

    async fn runs(&self, run: tasuki_core::RunId) -> Run {
        self.until(&format!("run {run} runs"), async || {
            let run = self.store.run(run).await.unwrap().unwrap();
            (run.state == RunState::Running).then_some(run)
        })
        .await
    }

    async fn over(self, node: Node) {
        node.stop().await;
        self.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forbid_skips_the_slots_that_come_while_it_runs() {
    let place = Place::new().await;
    let node = place.node().await;
    let work = waits_for(&place.data);
    let job = place.job("slow", every("1s", None), with(ConcurrencyPolicy::Forbid, &work)).await;
    let skipped = place.runs_of(job.id, 2, |state| state == RunState::Skipped).await;
    for run in &skipped {
        assert_eq!(run.reason.as_deref(), Some("CONCURRENT"), "{run:?}");
        assert_eq!((run.counters.tries, run.started_at), (0, None));
    }
    assert_eq!(place.story().len(), 1, "one began, none ended");
    place.go_on();
    let ended = place.runs_of(job.id, 2, |state| state == RunState::Succeeded).await;
    assert!(ended[0].id < skipped[0].id && ended[1].id > skipped[1].id, "it goes on by itself");
    place.over(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forbid_lets_tasks_wait_for_their_turn() {
    for claimed in [false, true] {
        let place = Place::new().await;
        let node = place.node().await;
        let mut spec = with(ConcurrencyPolicy::Forbid, &waits_for(&place.data));
        if claimed {
            spec.lane = COMMAND_LANE.to_owned();
        }
        let job = place.job("slow", Trigger::Task, spec).await;
        let tasks = place.submit_some(&job, 3).await;
        place.until("one begins", async || (place.story().len() == 1).then_some(())).await;
        let all = place.runs_of(job.id, 3, |_| true).await;
        let waiting = all.iter().filter(|run| run.state == RunState::Pending).count();
        assert_eq!(waiting, 2, "{all:?}");
        place.go_on();
        let mut expected = Vec::new();
        for task in tasks {
            assert_eq!(place.ended(task).await.state, RunState::Succeeded);
            expected.extend([format!("begin {task}"), format!("end {task}")]);
        }
        assert_eq!(place.story(), expected, "one after the other");
        place.over(node).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn allow_lets_runs_overlap() {
    let place = Place::new().await;
    let node = place.node().await;
    let work = waits_for(&place.data);
    let job = place.job("slow", every("1s", None), with(ConcurrencyPolicy::Allow, &work)).await;
    let running = place.runs_of(job.id, 3, |state| state == RunState::Running).await;
    place.until("all begin", async || (place.story().len() >= 3).then_some(())).await;
    assert!(place.story().iter().all(|line| line.starts_with("begin")));
    place.go_on();
    for run in running {
        assert_eq!(place.ended(run.id).await.state, RunState::Succeeded);
    }
    place.over(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replace_starts_the_newest_when_nothing_of_the_older_is_left() {
    let place = Place::new().await;
    let node = place.node().await;
    let (data, pid) = (place.data.display(), place.data.join("pid"));
    // The first does not listen, nor does its child; a later one looks whether they are still there.
    let script = format!(
        "if [ -e {data}/pid ]; then kill -0 -- -$(cat {data}/pid) && exit 3; exit 0; fi
         trap '' TERM; sh -c 'sleep 60' & echo $$ > {data}/pid.new; mv {data}/pid.new {data}/pid; wait"
    );
    let work = Work { stop_grace: Some(Duration::from_millis(700)), ..shell(&script) };
    let spec = with(ConcurrencyPolicy::Replace, &work);
    let job = place.job("sync", Trigger::Task, spec).await;
    let first = place.submit(&job, None).await;
    place.runs(first).await;
    place.until("it has begun", async || pid.exists().then_some(())).await;
    let later = place.submit_some(&job, 3).await;

    let first = place.ended(first).await;
    assert_eq!(first.state, RunState::Canceled, "{first:?}");
    for run in &later[..2] {
        let run = place.ended(*run).await;
        assert_eq!((run.state, run.counters.tries), (RunState::Canceled, 0), "{run:?}");
    }
    let newest = place.ended(later[2]).await;
    assert_eq!(newest.state, RunState::Succeeded, "{:?}", place.log(newest.id).await);
    assert!(newest.started_at >= first.finished_at);
    place.over(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replace_cuts_off_what_runs_when_the_next_slot_comes() {
    let place = Place::new().await;
    let node = place.node().await;
    let spec = with(ConcurrencyPolicy::Replace, &shell("exec sleep 60"));
    let job = place.job("watch", every("1s", None), spec).await;
    // On a busy machine a slot may come before the run of the last one has begun.
    let begun = async || {
        let canceled = place.runs_of(job.id, 2, |state| state == RunState::Canceled).await;
        let begun: Vec<_> = canceled.into_iter().filter(|run| run.counters.tries == 1).collect();
        (begun.len() >= 2).then_some(begun)
    };
    let canceled = place.until("two that had begun are cut off", begun).await;
    let next = place.runs_of(job.id, 1, |state| state == RunState::Running).await;
    assert!(next[0].id > canceled[1].id);
    let job = place.store.job_by_id(job.id).await.unwrap().unwrap();
    crate::place::applied(place.store.disable_job("test", job.seen()).await);
    let by = "test";
    for run in place.runs_of(job.id, 1, |state| state == RunState::Running).await {
        let _ = place.store.cancel(Writer::Api, run.id, by, None).await.unwrap();
        place.wake.all();
        place.ended(run.id).await;
    }
    place.over(node).await;
}

/// Whatever is claimed, what a leader gives finds the room that the leader saw.
#[tokio::test(flavor = "multi_thread")]
async fn commands_that_are_claimed_leave_room_for_those_that_are_assigned() {
    let place = Place::new().await;
    let node = place.node_like(Functions::default(), |config| config.slots = Some(1)).await;
    let lane = COMMAND_LANE.to_owned();
    let claimed = JobSpec { lane, ..spec(&waits_for(&place.data)) };
    let claimed = place.job("claimed", Trigger::Task, claimed).await;
    let first = place.submit_some(&claimed, 2).await[0];
    place.runs(first).await;
    let assigned = place.task("assigned", &shell("true")).await;
    let run = place.submit_some(&assigned, 1).await[0];
    let ended = place.ended(run).await;
    assert_eq!((ended.state, ended.counters.releases), (RunState::Succeeded, 0));
    assert_eq!(place.story().len(), 1, "one claimed command runs, and one waits");
    place.go_on();
    place.over(node).await;
}
