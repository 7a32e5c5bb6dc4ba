//! Answers that take their time: what they say was true when they were asked for, not when they came.

use super::super::{Config, Node};
use super::*;
use crate::Functions;
use crate::operator::JobDraft;
use tasuki_store::{Writer, Fault, Line, NewRun, Pause, Task};

/// A line on which every answer takes so many microseconds of our clock.
pub(super) struct SlowLine {
    clock: Arc<HandClock>,
    takes: AtomicU64,
}

impl SlowLine {
    pub(super) fn new(clock: Arc<HandClock>) -> Self {
        Self { clock, takes: AtomicU64::new(0) }
    }
}

impl Line for SlowLine {
    fn send(&self) -> Pause<'_, Fault> {
        Box::pin(async { Fault::None })
    }

    fn answer(&self) -> Pause<'_, ()> {
        Box::pin(async {
            let takes = self.takes.load(Ordering::Relaxed);
            self.clock.0.fetch_add(takes, Ordering::Relaxed);
        })
    }
}

const SLOW: u64 = 700_000;

impl World {
    fn slow_down(&self) {
        self.line.takes.store(SLOW, Ordering::Relaxed);
    }

    fn until(&self) -> u64 {
        self.hands.until.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn a_term_is_trusted_from_before_it_was_asked_for_and_less_than_it_lasts() {
    let world = World::at("12:00:00").await;
    world.slow_down();
    let settings = world.settings().await;
    let lasts = (settings.leader_ttl() - settings.leader_margin()).as_micros() as u64;
    // The first time it is minted, the second renewed.
    for _ in 0..2 {
        assert!(world.leader.lead(&settings).await.unwrap());
        let asked = world.clock.boottime() - SLOW;
        let renew_at = asked + settings.leader_renew().as_micros() as u64;
        world.clock.0.store(asked + lasts - 1, Ordering::Relaxed);
        assert!(world.leader.term().is_some());
        world.clock.0.store(asked + lasts, Ordering::Relaxed);
        assert!(world.leader.term().is_none(), "nobody may act on it any more");
        world.clock.0.store(renew_at, Ordering::Relaxed);
    }
    world.end().await;
}

#[tokio::test]
async fn what_runs_may_run_from_before_its_lease_was_asked_for() {
    for claimed in [true, false] {
        let world = World::with_patience("12:00:00").await;
        let job = world.create("job", &World::definition(Trigger::Task, "", claimed)).await;
        world.lead().await;
        world.worker.pulse().await.unwrap();
        let run = NewRun::task(&job.newest);
        world.store.create(Writer::Api, &[run]).await.unwrap();
        world.lead().await;
        let kill_after = world.settings().await.kill_after().as_micros() as u64;
        world.slow_down();
        let asked = world.clock.boottime();
        match claimed {
            true => drop(world.worker.claim().await.unwrap()),
            false => drop(world.worker.start_due().await.unwrap()),
        }
        assert_eq!(world.launched().len(), 1);
        // Whoever claims looks first, and asks then.
        let asked = if claimed { asked + SLOW } else { asked };
        assert_eq!(world.until(), asked + kill_after, "claimed: {claimed}");
        let asked = world.clock.boottime();
        world.worker.renew(true).await.unwrap();
        assert_eq!(world.until(), asked + kill_after, "and so it is renewed");
    }
}

#[tokio::test]
async fn the_first_task_of_a_declared_job_waits_for_nothing_but_itself() {
    for (declared, answers) in [(false, 2), (true, 1)] {
        let store = Store::open("sqlite::memory:", 1).await.unwrap();
        store.migrate().await.unwrap();
        let clock = Arc::new(HandClock::default());
        let line = Arc::new(SlowLine::new(Arc::clone(&clock)));
        let builder =
            Node::builder(Config::new("here".parse().unwrap()), store.with_line(line.clone()));
        let builder = match declared {
            true => builder.handler(FUNCTION, |(): (), _| async { Ok(()) }),
            false => {
                let draft = JobDraft::new(Work::new(What::Function(FUNCTION.to_owned())));
                let operator = Operator::new(store.clone(), Wake::default());
                operator.create_job(&by(), FUNCTION, &draft).await.unwrap();
                let mut functions = Functions::default();
                functions.add(FUNCTION, |(): (), _| async { Ok(()) });
                builder.functions(functions)
            }
        };
        let (node, _) = builder.assemble(Arc::clone(&clock) as Arc<dyn Clock>).await.unwrap();
        node.worker.claim().await.unwrap();
        let job = store.job(&FUNCTION.parse().unwrap()).await.unwrap().expect("it was made");
        line.takes.store(SLOW, Ordering::Relaxed);
        let task = [Task::new(Arc::new(job.newest))];
        assert!(node.worker.take_in(&task).await.unwrap().is_some(), "nothing waits before it");
        assert_eq!(clock.boottime() / SLOW, answers, "declared: {declared}");
    }
}
