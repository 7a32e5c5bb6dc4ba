//! The settings themselves.

use std::time::Duration;

use super::Problem;
use super::value::{Slots, Value};
use crate::Invalid;

/// What there is to know of one setting before changing it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// Its name, everywhere.
    pub name: &'static str,
    /// Its value unless somebody says otherwise.
    pub default: String,
    /// The least it can be.
    pub min: String,
    /// The most it can be.
    pub max: String,
    /// What can be typed.
    pub expected: &'static str,
    /// What it does and when to change it.
    pub english: &'static str,
    /// The same in Japanese.
    pub japanese: &'static str,
}

/// Makes the struct, its defaults, and access by name, from one list.
macro_rules! settings {
    ($(
        $(#[doc = $english:literal])+
        $name:ident: $type:ty = $default:expr, $min:expr, $max:expr, $japanese:literal;
    )+) => {
        /// The settings in force. They always agree with one another: see [`Settings::with`].
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Settings {
            $(pub(super) $name: $type,)+
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl Settings {
            /// Every setting, in the order people read about them.
            pub fn definitions() -> Vec<Definition> {
                vec![$(Definition {
                    name: stringify!($name),
                    default: <$type as Value>::show($default),
                    min: <$type as Value>::show($min),
                    max: <$type as Value>::show($max),
                    expected: <$type as Value>::EXPECTED,
                    english: concat!($($english),+).trim_ascii(),
                    japanese: $japanese,
                },)+]
            }

            $(
                $(#[doc = $english])+
                pub fn $name(&self) -> $type {
                    self.$name
                }
            )+

            /// The value of a setting as people read it.
            pub fn get(&self, name: &str) -> Option<String> {
                match name {
                    $(stringify!($name) => Some(self.$name.show()),)+
                    _ => None,
                }
            }

            /// Changes one value within its limits. The rules between values are not looked at, so
            /// this stays inside: [`Settings::with`] is the way in.
            pub(super) fn set(&mut self, name: &str, typed: &str) -> Result<(), Problem> {
                match name {
                    $(stringify!($name) => {
                        self.$name = read(stringify!($name), typed, $min, $max)?;
                        Ok(())
                    })+
                    _ => Err(Problem::unknown(name)),
                }
            }
        }
    };
}

fn read<V: Value>(name: &'static str, typed: &str, min: V, max: V) -> Result<V, Problem> {
    let fits = |value: &V| value.is_unlimited() || (min <= *value && *value <= max);
    V::read(typed).filter(fits).ok_or_else(|| {
        let expected = match (min.show(), max.show()) {
            (min, max) if min == "false" && max == "true" => V::EXPECTED.to_owned(),
            (min, max) => format!("{}, from {min} to {max}", V::EXPECTED),
        };
        Problem::Value(Invalid::typed(name, typed, expected))
    })
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 86_400)
}

settings! {
    /// How often the leader looks for work to plan. Work that arrives wakes it sooner, so this
    /// matters for housekeeping, not for punctuality.
    leader_tick: Duration = s(1), ms(10), s(60),
        "リーダーが計画を見直す間隔。仕事が届けばそれより早く起きるため、主に保守処理の頻度を決める。";
    /// How long before its time a run is made and given to a worker, which then starts it on the
    /// instant by its own timer. Longer bridges longer changes of leader.
    assign_ahead: Duration = s(30), ms(0), s(3_600),
        "予定時刻のどれだけ前に実行を作成してワーカーに割り当てるか。長いほどリーダー交代の影響を受けにくい。";
    /// How often the leader renews its lease.
    leader_renew: Duration = s(1), ms(10), s(60),
        "リーダーが自分のリースを更新する間隔。";
    /// How long the leader's lease lasts without renewal. Shorter finds a dead leader sooner;
    /// longer forgives slow networks.
    leader_ttl: Duration = s(5), ms(30), s(300),
        "リーダーのリースが更新なしで有効な時間。短いほど障害検知が早く、長いほど遅いネットワークに耐える。";
    /// How long before the end of its lease a leader stops acting by itself.
    leader_margin: Duration = s(1), ms(0), s(60),
        "リーダーがリース終了のどれだけ前に自ら動作を止めるか。";
    /// How old the leader's last sign of life may be before subleaders look after it.
    leader_stale: Duration = s(5), ms(30), s(300),
        "リーダーの最終生存時刻がこれより古いとサブリーダーが確認を始める。";
    /// How often a subleader looks after the leader.
    subleader_check: Duration = s(1), ms(10), s(60),
        "サブリーダーがリーダーを確認する間隔。";
    /// How often a worker shows that it is alive.
    heartbeat_interval: Duration = s(1), ms(10), s(60),
        "ワーカーが生存を報告する間隔。";
    /// How old a worker's heartbeat may be before it gets no new work.
    heartbeat_ttl: Duration = s(5), ms(30), s(300),
        "ハートビートがこれより古いワーカーには新しい仕事を割り当てない。";
    /// How long a silent worker is given before it is detached.
    worker_detach_grace: Duration = s(5), ms(0), s(600),
        "応答のないワーカーを切り離すまでの猶予。";
    /// How long after its time an assigned run may stay unstarted before it is given to another
    /// worker.
    reassign_after: Duration = s(15), ms(20), s(3_600),
        "割り当て済みの実行が予定時刻を過ぎても開始されないとき、別のワーカーに渡すまでの時間。";
    /// How often a run may be handed round without starting before it is given up as EXPIRED.
    max_releases: u32 = 20, 1, 10_000,
        "開始されないまま再割り当てを繰り返せる回数。超えると EXPIRED になる。";
    /// How often a worker renews the leases of what it runs.
    lease_renew: Duration = s(3), ms(10), s(60),
        "ワーカーが実行中のリースを更新する間隔。";
    /// How long a run's lease lasts without renewal. Work of a lost node is recovered after this
    /// and steal_grace.
    lease_ttl: Duration = s(30), ms(40), s(3_600),
        "実行のリースが更新なしで有効な時間。失われたノードの仕事はこの時間と steal_grace の後に回収される。";
    /// How long the database may be away without any running work being stopped.
    outage_tolerance: Duration = s(15), ms(0), s(3_600),
        "データベースに接続できなくても実行中の処理を止めない時間。";
    /// How long before the end of its lease running work is killed if the lease cannot be renewed.
    kill_margin: Duration = s(3), ms(1), s(600),
        "リースを更新できないとき、リース終了のどれだけ前に実行中の処理を強制終了するか。";
    /// How long after a lease has lapsed its runs are recovered.
    steal_grace: Duration = s(3), ms(0), s(600),
        "リースが切れてから実行を回収するまでの猶予。";
    /// How many commands a worker runs at once.
    max_jobs_per_worker: Slots = Slots::Auto, Slots::Fixed(1), Slots::Fixed(10_000),
        "1つのワーカーが同時に実行するコマンドの数。";
    /// How many functions of the default queue a worker runs at once.
    function_slots: u32 = 256, 1, 100_000,
        "1つのワーカーが同時に実行する、既定のキューの関数の数。";
    /// How often a detached worker asks whether it may go on.
    continuation_retry_count: u32 = 3, 1, 1_000,
        "切り離されたワーカーが継続の可否を問い合わせる回数。";
    /// How long a detached worker waits between two such questions.
    continuation_retry_interval: Duration = ms(300), ms(1), s(60),
        "切り離されたワーカーが継続の可否を問い合わせる間隔。";
    /// How late a planned run may start; what is later is SKIPPED, so that nothing floods a cluster
    /// that comes back. A job can choose another misfire policy.
    skip_late_after: Duration = s(300), ms(30), days(366),
        "予定された実行の遅れがこれを超えると SKIPPED になる。復旧直後に滞留分が一斉に動くのを防ぐ。ジョブごとに別の方針を選べる。";
    /// How often a failed command is tried again, unless its job says otherwise. A script is not
    /// rerun unless its owner says so.
    max_retries_command: u32 = 0, 0, 1_000,
        "失敗したコマンドを再試行する回数（ジョブで変更可能）。所有者が指定しない限りスクリプトは再実行されない。";
    /// How often a failed task or function is tried again, unless it says otherwise.
    max_retries_function: u32 = 3, 0, 1_000,
        "失敗したタスクや関数を再試行する回数（個別に変更可能）。";
    /// How long to wait before the second try; each further wait is twice the one before.
    retry_backoff: Duration = s(30), ms(0), days(7),
        "最初の再試行までの待ち時間。以後は倍々に延びる。";
    /// The longest wait between two tries.
    retry_backoff_cap: Duration = s(900), ms(0), days(30),
        "再試行までの待ち時間の上限。";
    /// The share of each wait, in percent, that chance may take away, so that what failed together
    /// does not return together.
    retry_jitter_percent: u32 = 0, 0, 100,
        "再試行の待ち時間のうち乱数で短縮してよい割合（%）。同時に失敗した処理が同時に戻るのを防ぐ。";
    /// How long one attempt may run, unless its job says otherwise; then it is TIMED_OUT.
    timeout: Duration = s(1_800), ms(10), days(366),
        "1回の試行の最大実行時間（ジョブで変更可能）。超えると TIMED_OUT になる。";
    /// How long a job may be silent before it is ended as HEARTBEAT_TIMEOUT, unless the job says
    /// otherwise.
    heartbeat_timeout: Option<Duration> = None, Some(ms(10)), Some(days(366)),
        "ジョブがこの時間沈黙すると HEARTBEAT_TIMEOUT として終了する（ジョブで変更可能）。";
    /// The same for handlers that report progress.
    progress_heartbeat_timeout: Option<Duration> = Some(s(300)), Some(ms(10)), Some(days(366)),
        "進捗を報告するハンドラーに適用される沈黙の上限。";
    /// How long work that got TERM is given before KILL.
    stop_grace: Duration = s(10), ms(0), s(3_600),
        "TERM を送ってから KILL を送るまでの猶予。";
    /// How often lost runs are looked for.
    recovery_interval: Duration = s(5), ms(10), s(3_600),
        "失われた実行を探す間隔。";
    /// Whether lost runs are recovered at all. Turn it off only to look at a broken cluster in
    /// peace.
    recovery_enabled: bool = true, false, true,
        "失われた実行を回収するかどうか。障害調査のために状態を保存したいときだけ無効にする。";
    /// How many days the text of logs stays in the database before it moves to the archive.
    log_retention_days_db: u32 = 7, 0, 36_500,
        "ログ本文をデータベースに保持する日数。過ぎるとアーカイブに移る。";
}
