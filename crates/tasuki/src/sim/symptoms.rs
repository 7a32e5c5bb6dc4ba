//! What simulations have found, each as a short story of its own.

use std::sync::Arc;

use tasuki_core::{RunId, RunState};
use tasuki_store::{Writer, ClaimBatch, Fault, NewRun};

use super::host::Tick;
use super::people;
use super::rng::Rng;
use super::stage::{SECOND, Stage};
use super::world::World;

fn story(tell: impl AsyncFnOnce(World)) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let stage = Stage::new(1, false);
        stage.inside().calm = true;
        let mut world = World::empty(stage).await.expect("a world");
        world.hosts.truncate(1);
        world.boot(0).await.expect("a node");
        tell(world).await;
    });
}

/// A run of this job that is due now.
pub(super) async fn task(world: &World, job: &str) -> RunId {
    let name = job.parse().expect("a good name");
    if world.store.job(&name).await.expect("an answer").is_none() {
        let made = people::create(&world.stage, &world.store, job, &mut Rng::new(1)).await;
        made.expect("a job");
    }
    let job = world.store.job(&name).await.expect("an answer").expect("it was made");
    let run = NewRun::task(&job.newest);
    let made = world.store.create(Writer::Api, &[run]).await.expect("a run");
    made[0].run
}

async fn ticks(world: &mut World, ticks: &[Tick]) {
    for tick in ticks {
        world.tick(0, *tick).await.expect("an answer");
    }
    while !world.stage.inside().letters.is_empty() {
        world.deliver();
    }
}

fn launched(world: &World) -> usize {
    world.stage.inside().ever_launched.len()
}

/// Everything is slow from now on: it waits until it is told to go on.
fn slow(world: &World) {
    let inside = &mut *world.stage.inside();
    (inside.calm, inside.loss, inside.slowness) = (false, 0, 1_000);
}

#[test]
fn what_is_long_overdue_is_started_and_not_handed_round() {
    story(async |mut world| {
        let run = task(&world, "event").await;
        world.pass(20 * SECOND);
        ticks(&mut world, &[Tick::Pulse, Tick::Lead, Tick::Plan]).await;
        world.pass(2 * SECOND);
        ticks(&mut world, &[Tick::StartDue]).await;
        let run = world.store.run(run).await.expect("an answer").expect("it was made");
        assert_eq!((run.state, run.counters.releases), (RunState::Running, 0));
        assert_eq!(launched(&world), 1);
    });
}

#[test]
fn who_led_last_leads_again_when_nobody_does() {
    story(async |mut world| {
        ticks(&mut world, &[Tick::Lead]).await;
        let first = world.store.leader().await.expect("an answer");
        assert!(first.lease_until > first.clock);
        world.pass(60 * SECOND);
        ticks(&mut world, &[Tick::Lead, Tick::Lead]).await;
        let second = world.store.leader().await.expect("an answer");
        assert!(second.lease_until > second.clock, "{second:?}");
        let deposed = world.store.demote("somebody", second.epoch, "a test").await;
        assert!(deposed.expect("an answer"));
        world.pass(2 * SECOND);
        // Others have a look first.
        ticks(&mut world, &[Tick::Lead]).await;
        world.pass(2 * SECOND);
        ticks(&mut world, &[Tick::Lead]).await;
        let third = world.store.leader().await.expect("an answer");
        assert!(third.epoch > second.epoch && third.lease_until > third.clock, "{third:?}");
    });
}

#[test]
fn two_renewals_at_once_launch_an_unanswered_claim_once() {
    story(async |world| {
        task(&world, "call").await;
        // The look is answered, the claim is not.
        world.stage.inside().next_faults = [Fault::None, Fault::Unanswered].into();
        let life = world.hosts[0].life.as_ref().expect("it lives");
        let unanswered = world.drive(&mut life.tick(Tick::Claim)).await;
        assert!(unanswered.is_some_and(|told| told.is_err()));
        slow(&world);
        let mut both = [life.tick(Tick::Renew), life.tick(Tick::RenewAll)];
        let mut done = [false; 2];
        while done != [true; 2] {
            for (one, done) in both.iter_mut().zip(&mut done) {
                *done = *done || world.drive(one).await.is_some();
            }
        }
        let broken = world.stage.inside().broken.take();
        assert_eq!((broken, launched(&world)), (None, 1));
    });
}

/// The worker asked, heard nothing, asked what is there, and heard: nothing. Only then did the claim land.
#[test]
fn a_claim_that_lands_late_is_launched() {
    story(async |mut world| {
        let run = task(&world, "call").await;
        // The look is answered, the claim is held up on its way.
        world.stage.inside().next_faults = [Fault::None, Fault::Unsent].into();
        let life = world.hosts[0].life.as_ref().expect("it lives");
        let unanswered = world.drive(&mut life.tick(Tick::Claim)).await;
        assert!(unanswered.is_some_and(|told| told.is_err()));
        let worker = Arc::clone(&life.worker);
        ticks(&mut world, &[Tick::RenewAll]).await;
        let [token] = worker.late()[..] else { panic!("{:?}", worker.late()) };
        let job = world.store.job(&"call".parse().expect("a name")).await.expect("an answer");
        let lane = &job.expect("it is there").newest.spec.lane;
        let lease_ttl = worker.settings().lease_ttl();
        let batch = ClaimBatch { worker: worker.id(), token, lane, most: 1, lease_ttl };
        world.store.claim(&batch).await.expect("it lands");
        ticks(&mut world, &[Tick::Pulse, Tick::RenewAll]).await;
        assert_eq!((launched(&world), worker.late().len()), (1, 0));
        let run = world.store.run(run).await.expect("an answer").expect("it is there");
        assert_eq!((run.state, run.counters.attempt_no), (RunState::Running, 1));
    });
}

/// Whoever submitted hears that it does not know; the worker carries what was made all the same.
#[test]
fn an_unanswered_intake_is_launched_once() {
    story(async |mut world| {
        task(&world, "call").await;
        ticks(&mut world, &[Tick::Claim, Tick::Claim]).await;
        assert_eq!(launched(&world), 1);
        // The job is read, the tasks are made, and nobody hears of it.
        world.stage.inside().next_faults = [Fault::None, Fault::Unanswered].into();
        let life = world.hosts[0].life.as_ref().expect("it lives");
        let unanswered = world.drive(&mut life.tick(Tick::TakeIn)).await;
        assert!(unanswered.is_some_and(|told| told.is_err()));
        assert_eq!(launched(&world), 1);
        ticks(&mut world, &[Tick::RenewAll, Tick::Renew]).await;
        let broken = world.stage.inside().broken.take();
        assert_eq!((broken, launched(&world)), (None, 3));
    });
}

#[test]
fn a_lease_is_trusted_for_as_long_as_it_was_asked_for() {
    story(async |mut world| {
        task(&world, "event").await;
        ticks(&mut world, &[Tick::Pulse, Tick::Lead, Tick::Plan]).await;
        let sent = world.stage.inside().boottime(0);
        slow(&world);
        let mut start = world.hosts[0].life.as_ref().expect("it lives").tick(Tick::StartDue);
        assert!(world.drive(&mut start).await.is_none(), "it waits to be sent");
        assert!(world.drive(&mut start).await.is_none(), "it waits for its answer");
        let seen = world.store.settings().await.expect("an answer");
        let changes = [("lease_ttl", "100s")];
        let _ = world.store.change_settings("somebody", seen.version, &changes).await;
        world.stage.inside().calm = true;
        ticks(&mut world, &[Tick::Pulse]).await;
        while world.drive(&mut start).await.is_none() {}
        let until: Vec<u64> = world.stage.inside().leases.values().copied().collect();
        assert_eq!(until, [sent + seen.settings.kill_after().as_micros() as u64]);
    });
}

#[test]
fn the_record_of_a_lost_run_is_forgotten_although_its_order_comes_again() {
    story(async |mut world| {
        task(&world, "event").await;
        ticks(&mut world, &[Tick::Pulse, Tick::Lead]).await;
        world.tick(0, Tick::Plan).await.expect("an answer");
        let again = world.stage.inside().letters[0].order.clone();
        ticks(&mut world, &[Tick::StartDue]).await;
        ticks(&mut world, &[Tick::StartDue]).await;
        assert_eq!(launched(&world), 1);
        world.pass(60 * SECOND);
        ticks(&mut world, &[Tick::Lead, Tick::Lead, Tick::Recover, Tick::Renew]).await;
        world.hosts[0].life.as_ref().expect("it lives").worker.hear(&again);
        ticks(&mut world, &[Tick::Report]).await;
        assert_eq!(world.stage.inside().spool.len(), 0);
    });
}
