//! The oracle on trial: a clean run passes, and a run with exactly one planted defect fails in exactly the check that is
//! about it, which names the place.
#![cfg(test)]

use std::{collections::BTreeMap, process::Command};

use oracle::{
    CheckId, Finding, Outcome, Run, Verdict, fingerprint, judge,
    run::{
        ApiAnswer, Checkpoint, Counters, Event, Fate, Fault, GroupSample, Guarantee, Lease, Life,
        Look, Micros, Move, Plan, Position, Row, Said, Skip, Snapshot, Status, StoredState, Vector,
        Written,
    },
};

const PARTITIONS: [i32; 2] = [0, 1];
const RECORDS: u64 = 60;
/// Records of a transaction; its marker takes an offset too.
const BATCH: u64 = 10;
/// Behind the last marker.
const END: i64 = 66;
/// Between two moments of the history.
const STEP: Micros = 1_000_000;

/// Moments: (checkpoint or nothing, epoch, kind, status, position of both partitions).
const CHECKPOINTS: [(i64, i64, &str, Status, i64); 7] = [
    (1, 1, "start", Status::Completed, 0),
    (2, 1, "periodic", Status::Completed, 22),
    (3, 2, "start", Status::Completed, 22),
    (4, 2, "periodic", Status::Completed, 44),
    (5, 3, "start", Status::Completed, 44),
    (6, 3, "periodic", Status::Failed, 44),
    (7, 3, "stop", Status::Completed, END),
];

fn offset_of(seq: u64) -> i64 {
    i64::try_from(seq + seq / BATCH).unwrap()
}

fn fate_of(partition: i32, seq: u64) -> Fate {
    match (partition, seq) {
        (_, 20..30) => Fate::Aborted,
        (1, 45) => Fate::Info,
        _ => Fate::Acked,
    }
}

fn value(partition: i32, seq: u64) -> String {
    fingerprint(format!("clean {partition} {seq}").as_bytes())
}

fn row(partition: i32, seq: u64) -> Row {
    Row {
        run: "clean".to_owned(),
        p: partition,
        seq,
        offset: offset_of(seq),
        hash: value(partition, seq),
        order: Some(seq * 10),
        life: None,
        place: format!("row {seq}"),
    }
}

fn readable(partition: i32) -> impl Iterator<Item = u64> {
    (0..RECORDS).filter(move |seq| fate_of(partition, *seq) != Fate::Aborted)
}

fn both(offset: i64) -> Vector {
    PARTITIONS.map(|partition| (partition, offset)).into()
}

fn checkpoint(number: usize) -> Checkpoint {
    let (id, epoch, kind, status, offset) = CHECKPOINTS[number];
    let position = Position {
        topic_id: Some("topic".to_owned()),
        next_offset: Some(offset),
        position_id: 1,
    };
    let vector = PARTITIONS.map(|partition| (partition, position.clone()));
    Checkpoint {
        id,
        kind: kind.to_owned(),
        status,
        epoch,
        vector: vector.into(),
    }
}

/// Two kills, an aborted transaction, a record of unknown fate: everything went well.
fn clean() -> Run {
    let mut run = Run {
        plan: Plan {
            run: "clean".to_owned(),
            seed: 7,
            guarantee: Guarantee::ExactlyOnce,
            versions: BTreeMap::from([("handover".to_owned(), "0.1.0".to_owned())]),
            faults: BTreeMap::from([("kill".to_owned(), 2)]),
            liveness_ms: 10_000,
            group_commits: true,
            from_the_first: true,
            ends: Vector::new(),
            left_out: BTreeMap::new(),
        },
        ..Run::default()
    };
    for partition in PARTITIONS {
        for seq in 0..RECORDS {
            let fate = fate_of(partition, seq);
            run.journal.push(Written {
                p: partition,
                seq,
                offset: (fate != Fate::Info).then(|| offset_of(seq)),
                hash: value(partition, seq),
                fate,
            });
        }
        run.rows
            .extend(readable(partition).map(|seq| row(partition, seq)));
    }
    let mut newest = None;
    let mut group = BTreeMap::new();
    for (number, (id, epoch, kind, status, offset)) in CHECKPOINTS.into_iter().enumerate() {
        let at = STEP * (number as Micros + 1);
        if status == Status::Completed {
            newest = Some((id, offset));
            if kind != "start" {
                group = both(offset);
            }
        }
        moment(&mut run, at, epoch, Some(number), &group, newest.unwrap());
    }
    // Quiet, and one more look at everything.
    let end = STEP * 8;
    moment(&mut run, end, 3, None, &group, newest.unwrap());
    for at in [STEP * 2 + 600_000, STEP * 4 + 600_000] {
        run.history.push(Event::Fault(Fault {
            began: None,
            at,
            healed: Some(at + 200_000),
            kind: "kill".to_owned(),
            effective: true,
        }));
    }
    run.history.push(Event::WriterEnded { at: STEP * 6 });
    run.history.push(Event::Residue {
        at: end + 600_000,
        found: Vec::new(),
    });
    run.history.push(Event::Counters(Counters {
        at: end,
        from: both(44),
        to: both(END),
        records_in: 40,
        out: 40,
        ..Counters::default()
    }));
    run
}

/// Everybody is asked once.
fn moment(
    run: &mut Run,
    at: Micros,
    epoch: i64,
    number: Option<usize>,
    group: &Vector,
    (newest, offset): (i64, i64),
) {
    run.history.push(Event::Store(Snapshot {
        began: at,
        at: at + 50_000,
        lease: Some(Lease {
            owner: Some(format!("server-{epoch}")),
            epoch,
        }),
        state: Some(StoredState {
            state: "running".to_owned(),
            desired: "running".to_owned(),
            operation: None,
            since: format!("life {epoch}"),
        }),
        rows: number.map(checkpoint).into_iter().collect(),
    }));
    run.history.push(Event::Group(GroupSample {
        began: at + 100_000,
        at: at + 150_000,
        offsets: group.clone(),
    }));
    let said = [
        Said::Checkpoints(run_of(newest)),
        Said::Offsets {
            checkpoint_as_of: None,
            group_as_of: None,
            checkpointed: Some(both(offset)),
            group: Some(group.clone()),
        },
        Said::Job {
            state: "running".to_owned(),
            last_checkpoint: Some(newest),
            under_way: None,
        },
    ];
    for (number, said) in said.into_iter().enumerate() {
        let began = at + 200_000 + number as Micros * 100_000;
        run.history.push(Event::Api(ApiAnswer {
            began,
            at: began + 50_000,
            said,
        }));
    }
    let seen = PARTITIONS.map(|partition| {
        let seqs = readable(partition).filter(|seq| offset_of(*seq) < offset);
        (partition, seqs.collect())
    });
    run.looks.push(Look {
        began: at + 500_000,
        at: at + 550_000,
        seen: seen.into(),
    });
}

fn run_of(newest: i64) -> Vec<Checkpoint> {
    let numbers = 0..CHECKPOINTS.len();
    let all = numbers.map(checkpoint).filter(|row| row.id <= newest);
    all.collect()
}

/// The same run with a log sink: each kill made ten records come again.
fn clean_at_least_once() -> Run {
    // Positions 22 and 44 are behind seqs 19 and 39; both lives had come ten records further.
    at_least_once([(0, 40), (30, 50), (40, 60)])
}

/// The seqs that came in each of the three lives.
fn at_least_once(lives: [(u64, u64); 3]) -> Run {
    let mut run = clean();
    run.plan.guarantee = Guarantee::AtLeastOnce;
    run.rows.clear();
    for partition in PARTITIONS {
        let readable: Vec<u64> = readable(partition).collect();
        for (epoch, (from, to)) in (1..).zip(lives) {
            let life = readable.iter().filter(|seq| (from..to).contains(*seq));
            for seq in life {
                let order = run.rows.len() as u64;
                run.rows.push(Row {
                    order: Some(order),
                    life: Some(Life {
                        after: epoch - 1,
                        upto: (epoch < 3).then_some(epoch),
                    }),
                    ..row(partition, *seq)
                });
            }
        }
    }
    run
}

fn rows_of(run: &mut Run, partition: i32, seq: u64) -> &mut Row {
    let mut rows = run.rows.iter_mut();
    rows.find(|row| row.p == partition && row.seq == seq)
        .unwrap()
}

fn snapshots(run: &mut Run) -> Vec<&mut Snapshot> {
    let events = run.history.iter_mut();
    events
        .filter_map(|event| match event {
            Event::Store(snapshot) => Some(snapshot),
            _ => None,
        })
        .collect()
}

fn groups(run: &mut Run) -> Vec<&mut GroupSample> {
    let events = run.history.iter_mut();
    events
        .filter_map(|event| match event {
            Event::Group(sample) => Some(sample),
            _ => None,
        })
        .collect()
}

fn said(run: &mut Run) -> Vec<&mut Said> {
    let events = run.history.iter_mut();
    events
        .filter_map(|event| match event {
            Event::Api(answer) => Some(&mut answer.said),
            _ => None,
        })
        .collect()
}

/// The one thing that is wrong, and in this check alone.
fn only(run: &Run, check: CheckId) -> Finding {
    let verdict = judge(run);
    assert!(!verdict.passed(), "{verdict}");
    assert_eq!(verdict.problems, Vec::<String>::new(), "{verdict}");
    assert_eq!(verdict.failed_checks(), [check], "{verdict}");
    let findings = verdict.findings(check);
    assert_eq!(findings.len(), 1, "{verdict}");
    findings[0].clone()
}

fn place(finding: &Finding) -> (Option<i32>, Option<u64>, Option<i64>) {
    (finding.partition, finding.seq, finding.offset)
}

fn outcome(verdict: &Verdict, id: CheckId) -> &Outcome {
    let found = verdict.checks.iter().find(|check| check.id == id);
    &found.unwrap().outcome
}

#[test]
fn a_clean_run_passes_and_the_report_says_on_what_grounds() {
    let verdict = judge(&clean());
    assert!(verdict.passed(), "{verdict}");
    let report = verdict.to_string();
    for part in [
        "run clean, seed 7",
        "handover 0.1.0",
        "kill: 2 struck, 2 effective, 2 planned",
        "0 lost, 0 duplicated of 99",
        "PASSED",
    ] {
        assert!(report.contains(part), "no {part:?} in\n{report}");
    }
    for check in &verdict.checks {
        assert!(matches!(check.outcome, Outcome::Passed { .. }), "{verdict}");
    }
}

#[test]
fn a_clean_run_with_a_log_sink_passes_with_its_repeats() {
    let mut run = clean_at_least_once();
    let verdict = judge(&run);
    assert!(verdict.passed(), "{verdict}");
    // Also where nobody noted the lives.
    for row in &mut run.rows {
        row.life = None;
    }
    let verdict = judge(&run);
    assert!(verdict.passed(), "{verdict}");
    assert_eq!(outcome(&verdict, CheckId::O5), &Outcome::NotForThisSink);
}

#[test]
fn a_clean_run_with_a_blackhole_is_judged_by_its_counters() {
    let mut run = clean();
    run.plan.guarantee = Guarantee::Counted;
    run.rows.clear();
    run.looks.clear();
    let verdict = judge(&run);
    assert!(verdict.passed(), "{verdict}");
    assert_eq!(outcome(&verdict, CheckId::O1), &Outcome::NotForThisSink);
}

#[test]
fn a_run_survives_being_written_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let run = clean();
    oracle::write(folder.path(), &run).unwrap();
    assert_eq!(oracle::read(folder.path()).unwrap(), run);
}

#[test]
fn the_program_answers_with_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let judged = || {
        let mut program = Command::new(env!("CARGO_BIN_EXE_oracle"));
        let output = program.arg(folder.path()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), text)
    };
    assert_eq!(judged(), (2, String::new()));
    oracle::write(folder.path(), &clean()).unwrap();
    let (code, text) = judged();
    assert_eq!(code, 0, "{text}");
    let mut run = clean();
    run.rows.push(row(1, 58));
    oracle::write(folder.path(), &run).unwrap();
    let (code, text) = judged();
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("0 lost, 1 duplicated of 99"), "{text}");
}

#[test]
fn o1_a_record_is_missing() {
    let mut run = clean();
    run.rows.retain(|row| (row.p, row.seq) != (1, 33));
    for look in &mut run.looks {
        let seen = look.seen.get_mut(&1).unwrap();
        *seen = seen.numbers().filter(|seq| *seq != 33).collect();
    }
    let finding = only(&run, CheckId::O1);
    assert_eq!(place(&finding), (Some(1), Some(33), Some(36)));
    let report = judge(&run).to_string();
    assert!(report.contains("1 lost, 0 duplicated of 99"), "{report}");
    assert!(report.contains("partition 1 seq 33 offset 36"), "{report}");
}

#[test]
fn o1_a_record_below_the_last_position_is_missing_in_a_log() {
    let mut run = clean_at_least_once();
    run.rows.retain(|row| (row.p, row.seq) != (0, 59));
    for look in &mut run.looks {
        let seen = look.seen.get_mut(&0).unwrap();
        *seen = seen.below(59);
    }
    let finding = only(&run, CheckId::O1);
    assert_eq!(place(&finding), (Some(0), Some(59), Some(64)));
}

#[test]
fn o1_a_partition_is_not_read_from_its_first_record_on() {
    let mut run = clean();
    // Partition 1 begins behind seq 19, as one does that appeared and was read from its end.
    position(&mut run, 0, 1).next_offset = Some(22);
    said_of(&mut run, 0, 1, 22);
    run.rows.retain(|row| row.p == 0 || row.offset >= 22);
    for look in &mut run.looks {
        let seen = look.seen.get_mut(&1).unwrap();
        *seen = seen.numbers().filter(|seq| offset_of(*seq) >= 22).collect();
    }
    let verdict = judge(&run);
    assert_eq!(verdict.failed_checks(), [CheckId::O1], "{verdict}");
    let findings = verdict.findings(CheckId::O1);
    assert!(verdict.to_string().contains("20 lost"), "{verdict}");
    assert_eq!(place(&findings[0]), (Some(1), Some(0), Some(0)));
    // Where a job was told to begin is its own affair otherwise.
    run.plan.from_the_first = false;
    let verdict = judge(&run);
    assert!(verdict.passed(), "{verdict}");
}

#[test]
fn o2_a_record_is_there_twice() {
    let mut run = clean();
    let mut again = row(0, 35);
    again.order = Some(10_000);
    run.rows.push(again);
    let finding = only(&run, CheckId::O2);
    assert_eq!(place(&finding), (Some(0), Some(35), Some(38)));
}

#[test]
fn o2_a_record_came_again_in_a_log_without_a_new_life() {
    let mut run = clean_at_least_once();
    // Both lives explain one going back each; this is a third.
    let order = run.rows.len() as u64;
    run.rows.push(Row {
        order: Some(order),
        life: run.rows.last().unwrap().life,
        ..row(1, 58)
    });
    let finding = only(&run, CheckId::O2);
    assert_eq!(place(&finding), (Some(1), Some(58), Some(63)));
}

#[test]
fn o2_a_record_from_before_the_last_checkpoint_came_again_in_a_log() {
    let mut run = clean_at_least_once();
    // The last life began at 44, behind seq 39, but went further back.
    let first_of_life = run.rows.iter().rposition(|row| (row.p, row.seq) == (0, 40));
    let first_of_life = first_of_life.unwrap();
    let again = Row {
        life: run.rows[first_of_life].life,
        ..row(0, 39)
    };
    run.rows.insert(first_of_life, again);
    for (order, row) in run.rows.iter_mut().enumerate() {
        row.order = Some(order as u64);
    }
    let verdict = judge(&run);
    assert_eq!(verdict.failed_checks(), [CheckId::O2], "{verdict}");
    let first = &verdict.findings(CheckId::O2)[0];
    assert_eq!(place(first), (Some(0), Some(39), Some(42)));
}

#[test]
fn o2_a_life_that_repeated_nothing_explains_nothing_of_the_next() {
    // The second life began at 22, behind all that the first had written. The third began at 44, and read from 33.
    let run = at_least_once([(0, 20), (30, 50), (30, 60)]);
    let verdict = judge(&run);
    assert_eq!(verdict.failed_checks(), [CheckId::O2], "{verdict}");
    let first = &verdict.findings(CheckId::O2)[0];
    assert_eq!(place(first), (Some(0), Some(30), Some(33)));
}

#[test]
fn o2_a_life_that_took_its_lease_twice_may_go_back_twice() {
    let mut run = clean_at_least_once();
    for row in &mut run.rows {
        let upto = row.life.unwrap().upto.filter(|upto| *upto == 1);
        let after = if upto.is_some() { 0 } else { 1 };
        row.life = Some(Life { after, upto });
    }
    let verdict = judge(&run);
    assert!(verdict.passed(), "{verdict}");
}

#[test]
fn o3_an_aborted_record_is_there() {
    let mut run = clean();
    run.rows.push(row(0, 25));
    run.rows.sort_by_key(|row| (row.p, row.seq));
    let finding = only(&run, CheckId::O3);
    assert_eq!(place(&finding), (Some(0), Some(25), Some(27)));
}

#[test]
fn o3_a_value_is_another_one() {
    let mut run = clean();
    rows_of(&mut run, 1, 12).hash = fingerprint(b"torn");
    let finding = only(&run, CheckId::O3);
    assert_eq!(place(&finding), (Some(1), Some(12), Some(13)));
}

#[test]
fn o3_a_row_has_another_offset_than_its_record() {
    let mut run = clean();
    rows_of(&mut run, 1, 12).offset += 1;
    assert_eq!(only(&run, CheckId::O3).seq, Some(12));
}

#[test]
fn o3_a_row_belongs_to_another_run() {
    let mut run = clean();
    run.rows.push(Row {
        run: "other".to_owned(),
        ..row(0, 3)
    });
    assert_eq!(only(&run, CheckId::O3).seq, Some(3));
}

#[test]
fn o4_two_records_are_swapped() {
    let mut run = clean();
    rows_of(&mut run, 0, 50).order = Some(515);
    let finding = only(&run, CheckId::O4);
    assert_eq!(place(&finding), (Some(0), Some(50), Some(55)));
}

#[test]
fn o5_a_row_lies_beyond_the_last_position() {
    let mut run = clean();
    // The writer never learnt what became of its last record.
    run.journal.push(Written {
        p: 0,
        seq: RECORDS,
        offset: None,
        hash: value(0, RECORDS),
        fate: Fate::Info,
    });
    run.rows.push(row(0, RECORDS));
    let finding = only(&run, CheckId::O5);
    assert_eq!(place(&finding), (Some(0), Some(60), Some(66)));
}

#[test]
fn o6_a_gap_fills_later() {
    let mut run = clean();
    // The look after the fourth checkpoint.
    run.looks[3]
        .seen
        .insert(1, (0..20).chain(30..34).chain(35..40).collect());
    let finding = only(&run, CheckId::O6);
    assert_eq!(place(&finding), (Some(1), Some(34), Some(37)));
}

#[test]
fn o6_a_row_goes_away() {
    let mut run = clean();
    // One record more than in the look after it.
    run.looks[1].seen.insert(0, (0..20).chain([30]).collect());
    let finding = only(&run, CheckId::O6);
    assert_eq!(place(&finding), (Some(0), Some(30), Some(33)));
}

#[test]
fn o7_an_id_is_smaller_than_one_before() {
    let mut run = clean();
    let late = snapshots(&mut run)[5].rows.remove(0);
    snapshots(&mut run)[7].rows.push(late);
    assert_eq!(only(&run, CheckId::O7).checkpoint, Some(6));
}

#[test]
fn o7_an_id_has_two_rows() {
    let mut run = clean();
    let last = snapshots(&mut run).remove(6);
    let again = last.rows[0].clone();
    last.rows.push(again);
    assert_eq!(only(&run, CheckId::O7).checkpoint, Some(7));
}

#[test]
fn o7_a_failed_checkpoint_becomes_a_completed_one() {
    let mut run = clean();
    let failed = snapshots(&mut run).remove(5).rows[0].clone();
    snapshots(&mut run).remove(6).rows.insert(
        0,
        Checkpoint {
            status: Status::Completed,
            ..failed
        },
    );
    assert_eq!(only(&run, CheckId::O7).checkpoint, Some(6));
}

#[test]
fn o8_a_position_goes_back() {
    let mut run = clean();
    // Checkpoint 5 is a start below checkpoint 4.
    position(&mut run, 4, 1).next_offset = Some(43);
    said_of(&mut run, 4, 1, 43);
    let finding = only(&run, CheckId::O8);
    assert_eq!(finding.checkpoint, Some(5));
    assert_eq!(place(&finding), (Some(1), None, Some(43)));
}

#[test]
fn o8_a_position_is_decided_anew_without_an_order() {
    let mut run = clean();
    for number in 4..CHECKPOINTS.len() {
        redecide(&mut run, number, 5);
    }
    let verdict = judge(&run);
    assert_eq!(verdict.failed_checks(), [CheckId::O8], "{verdict}");
    assert_eq!(verdict.findings(CheckId::O8)[0].checkpoint, Some(5));
    run.history.push(Event::Move(Move {
        at: STEP * 5 - 100_000,
        to: both(44),
        left: Vector::new(),
    }));
    let verdict = judge(&run);
    assert!(verdict.passed(), "{verdict}");
}

/// Seq 39 of partition 0 cannot be processed, and an operator leaves it out: checkpoint 4 stands behind it.
fn clean_with_a_skip() -> Run {
    let mut run = clean();
    let bad = (0, 39);
    for written in &mut run.journal {
        if (written.p, written.seq) == bad {
            written.fate = Fate::Bad;
        }
    }
    run.rows.retain(|row| (row.p, row.seq) != bad);
    for look in &mut run.looks {
        let seen = look.seen.get_mut(&0).unwrap();
        *seen = seen.numbers().filter(|seq| *seq != bad.1).collect();
    }
    let behind = offset_of(bad.1) + 1;
    position(&mut run, 3, 0).next_offset = Some(behind);
    said_of(&mut run, 3, 0, behind);
    for number in 3..CHECKPOINTS.len() {
        decide(&mut run, number, 0, 4);
    }
    for sample in &mut groups(&mut run)[3..6] {
        sample.offsets.insert(0, behind);
    }
    for said in said(&mut run) {
        if let Said::Offsets {
            group: Some(group), ..
        } = said
            && group.get(&0) == Some(&44)
        {
            group.insert(0, behind);
        }
    }
    run
}

#[test]
fn o8_a_record_may_be_left_out_that_an_operator_named_and_no_other() {
    let mut run = clean_with_a_skip();
    let skip = |offset| {
        Event::Skip(Skip {
            at: STEP * 3,
            partition: 0,
            offset,
        })
    };
    run.history.push(skip(41));
    let verdict = judge(&run);
    assert!(verdict.failed_checks().contains(&CheckId::O8), "{verdict}");
    run.history.push(skip(42));
    let verdict = judge(&run);
    assert!(verdict.passed(), "{verdict}");
    // What lies before it is not left out with it.
    run.rows.retain(|row| (row.p, row.seq) != (0, 38));
    for look in &mut run.looks {
        let seen = look.seen.get_mut(&0).unwrap();
        *seen = seen.numbers().filter(|seq| *seq != 38).collect();
    }
    assert_eq!(only(&run, CheckId::O1).seq, Some(38));
}

#[test]
fn o3_a_record_that_cannot_be_processed_is_there() {
    let mut run = clean();
    let bad = run
        .journal
        .iter_mut()
        .find(|written| (written.p, written.seq) == (1, 33));
    bad.unwrap().fate = Fate::Bad;
    let finding = only(&run, CheckId::O3);
    assert_eq!(place(&finding), (Some(1), Some(33), Some(36)));
}

#[test]
fn o9_an_older_epoch_writes_after_a_newer_was_taken() {
    let mut run = clean();
    // The newer epoch is there before the older one's last checkpoint is.
    snapshots(&mut run)[2].lease.as_mut().unwrap().epoch = 3;
    snapshots(&mut run)[3].lease.as_mut().unwrap().epoch = 3;
    for number in [2, 3] {
        let snapshot = snapshots(&mut run).remove(number);
        snapshot.lease.as_mut().unwrap().owner = Some("server-3".to_owned());
    }
    assert_eq!(only(&run, CheckId::O9).checkpoint, Some(4));
}

#[test]
fn o9_an_epoch_goes_back() {
    let mut run = clean();
    let lease = Lease {
        owner: None,
        epoch: 2,
    };
    snapshots(&mut run)[7].lease = Some(lease);
    assert!(only(&run, CheckId::O9).what.contains("back"));
}

#[test]
fn o9_an_epoch_has_two_owners() {
    let mut run = clean();
    let last = snapshots(&mut run).pop().unwrap();
    last.lease.as_mut().unwrap().owner = Some("twin".to_owned());
    assert!(only(&run, CheckId::O9).what.contains("two owners"));
}

#[test]
fn o10_the_group_is_ahead_of_the_checkpoints() {
    let mut run = clean();
    // Checkpoint 4 will have it.
    groups(&mut run)[1].offsets.insert(0, 44);
    groups(&mut run)[2].offsets.insert(0, 44);
    unsay_the_group(&mut run);
    let finding = only(&run, CheckId::O10);
    assert_eq!(place(&finding), (Some(0), None, Some(44)));
    assert!(finding.what.contains("ahead"));
}

#[test]
fn o10_the_group_has_what_no_checkpoint_has() {
    let mut run = clean();
    groups(&mut run)[5].offsets.insert(1, 45);
    unsay_the_group(&mut run);
    let finding = only(&run, CheckId::O10);
    assert_eq!(place(&finding), (Some(1), None, Some(45)));
}

#[test]
fn o10_the_group_goes_back() {
    let mut run = clean();
    groups(&mut run)[4].offsets.insert(1, 22);
    unsay_the_group(&mut run);
    let finding = only(&run, CheckId::O10);
    assert_eq!(place(&finding), (Some(1), None, Some(22)));
}

#[test]
fn o10_the_group_stays_behind() {
    let mut run = clean();
    for number in [6, 7] {
        groups(&mut run)[number].offsets.insert(0, 44);
    }
    unsay_the_group(&mut run);
    let finding = only(&run, CheckId::O10);
    assert_eq!(place(&finding), (Some(0), None, Some(END)));
}

#[test]
fn o11_offsets_shows_what_no_checkpoint_has() {
    let mut run = clean();
    let shown = said(&mut run).into_iter().find_map(|said| match said {
        Said::Offsets {
            checkpointed: Some(shown),
            ..
        } if shown[&0] == 44 => Some(shown),
        _ => None,
    });
    shown.unwrap().insert(1, 43);
    let finding = only(&run, CheckId::O11);
    assert_eq!(place(&finding), (Some(1), None, Some(43)));
}

#[test]
fn o11_offsets_shows_an_older_checkpoint_and_does_not_say_so() {
    let mut run = clean();
    let last = said(&mut run).into_iter().rev().nth(4);
    let Some(Said::Offsets {
        checkpointed,
        checkpoint_as_of,
        ..
    }) = last
    else {
        panic!("the offsets after the stop");
    };
    *checkpointed = Some(both(44));
    let as_of = checkpoint_as_of.replace(STEP * 6 + 50_000);
    assert_eq!(as_of, None);
    assert!(judge(&run).passed(), "it says how old it is");
    let last = said(&mut run).into_iter().rev().nth(4);
    let Some(Said::Offsets {
        checkpoint_as_of, ..
    }) = last
    else {
        panic!("the same");
    };
    *checkpoint_as_of = None;
    assert_eq!(only(&run, CheckId::O11).offset, Some(44));
}

#[test]
fn o11_offsets_shows_another_group_offset() {
    let mut run = clean();
    let shown = said(&mut run).into_iter().find_map(|said| match said {
        Said::Offsets {
            group: Some(shown), ..
        } if shown.get(&0) == Some(&22) => Some(shown),
        _ => None,
    });
    shown.unwrap().insert(0, 21);
    let finding = only(&run, CheckId::O11);
    assert_eq!(place(&finding), (Some(0), None, Some(21)));
}

#[test]
fn o11_checkpoints_shows_a_row_that_is_not_there() {
    let mut run = clean();
    let shown = said(&mut run).into_iter().find_map(|said| match said {
        Said::Checkpoints(rows) if rows.len() == 6 - 1 => Some(rows),
        _ => None,
    });
    shown.unwrap()[3].epoch = 1;
    assert_eq!(only(&run, CheckId::O11).checkpoint, Some(4));
}

#[test]
fn o11_the_job_shows_an_older_checkpoint() {
    let mut run = clean();
    let shown = said(&mut run)
        .into_iter()
        .rev()
        .find_map(|said| match said {
            Said::Job {
                last_checkpoint, ..
            } => Some(last_checkpoint),
            _ => None,
        });
    *shown.unwrap() = Some(5);
    // The last answer has no look at the store behind it: the one before.
    assert!(judge(&run).passed());
    let shown = said(&mut run)
        .into_iter()
        .rev()
        .filter_map(|said| match said {
            Said::Job {
                last_checkpoint, ..
            } => Some(last_checkpoint),
            _ => None,
        });
    *shown.into_iter().nth(1).unwrap() = Some(5);
    assert_eq!(only(&run, CheckId::O11).checkpoint, Some(5));
}

#[test]
fn o11_the_job_may_show_a_stored_checkpoint_as_under_way() {
    let mut run = clean();
    let mut shown = said(&mut run).into_iter().filter_map(|said| match said {
        Said::Job {
            last_checkpoint,
            under_way,
            ..
        } => Some((last_checkpoint, under_way)),
        _ => None,
    });
    let (last, under_way) = shown.nth(3).unwrap();
    *last = Some(3);
    *under_way = Some(4);
    drop(shown);
    assert!(judge(&run).passed());
    let mut shown = said(&mut run).into_iter().filter_map(|said| match said {
        Said::Job {
            last_checkpoint, ..
        } => Some(last_checkpoint),
        _ => None,
    });
    // One more is missing than is under way.
    *shown.nth(3).unwrap() = Some(2);
    drop(shown);
    assert_eq!(only(&run, CheckId::O11).checkpoint, Some(2));
    // A view that stands still.
    let mut run = clean();
    let mut shown = said(&mut run).into_iter().filter_map(|said| match said {
        Said::Job {
            last_checkpoint,
            under_way,
            ..
        } => Some((last_checkpoint, under_way)),
        _ => None,
    });
    let (last, under_way) = shown.nth(6).unwrap();
    *last = Some(3);
    *under_way = Some(4);
    drop(shown);
    assert_eq!(only(&run, CheckId::O11).checkpoint, Some(3));
}

#[test]
fn o11_the_job_shows_a_state_that_it_never_had() {
    let mut run = clean();
    let shown = said(&mut run)
        .into_iter()
        .rev()
        .filter_map(|said| match said {
            Said::Job { state, .. } => Some(state),
            _ => None,
        });
    *shown.into_iter().nth(1).unwrap() = "stopped".to_owned();
    assert!(only(&run, CheckId::O11).what.contains("stopped"));
}

/// A partition that is discovered begins in the middle of a life, and comes again from the start of the next one.
#[test]
fn o02_what_appears_in_a_life_may_come_again_in_the_next() {
    let mut run = clean_at_least_once();
    for look in snapshots(&mut run) {
        for row in &mut look.rows {
            if row.id == 1 {
                row.vector.remove(&1);
            }
        }
    }
    for said in said(&mut run) {
        if let Said::Checkpoints(rows) = said {
            for row in rows.iter_mut().filter(|row| row.id == 1) {
                row.vector.remove(&1);
            }
        }
    }
    let verdict = judge(&run);
    assert_eq!(
        outcome(&verdict, CheckId::O2),
        outcome(&judge(&clean_at_least_once()), CheckId::O2),
        "{verdict}"
    );
}

#[test]
fn o11_a_job_whose_owner_was_killed_may_be_starting() {
    let mut run = clean();
    let shown = said(&mut run).into_iter().find_map(|said| match said {
        Said::Job { state, .. } => Some(state),
        _ => None,
    });
    // Long before the first kill.
    *shown.unwrap() = "starting".to_owned();
    assert!(only(&run, CheckId::O11).what.contains("starting"));
    for event in &mut run.history {
        if let Event::Fault(fault) = event {
            fault.at = STEP + 100_000;
        }
    }
    assert!(judge(&run).passed());
    // An operation that somebody asks for later makes the stored state no newer.
    for began in [STEP + 200_000, STEP * 2 + 500_000] {
        let mut look = snapshots(&mut run)[0].clone();
        (look.began, look.at) = (began, began + 50_000);
        look.rows.clear();
        run.history.push(Event::Store(look));
    }
    for event in &mut run.history {
        if let Event::Store(look) = event
            && look.began > STEP + 200_000
        {
            look.state.as_mut().unwrap().operation = Some("skip".to_owned());
        }
    }
    let second = said(&mut run).into_iter().filter_map(|said| match said {
        Said::Job { state, .. } => Some(state),
        _ => None,
    });
    *second.into_iter().nth(1).unwrap() = "starting".to_owned();
    assert!(judge(&run).passed());
}

#[test]
fn o11_a_start_that_was_stored_just_now_may_be_starting_still() {
    let mut run = clean();
    let shown = said(&mut run).into_iter().find_map(|said| match said {
        Said::Job { state, .. } => Some(state),
        _ => None,
    });
    *shown.unwrap() = "starting".to_owned();
    let asked_at = |run: &mut Run, began: Micros| {
        let answer = run.history.iter_mut().find_map(|event| match event {
            Event::Api(answer) if matches!(answer.said, Said::Job { .. }) => Some(answer),
            _ => None,
        });
        answer.unwrap().began = began;
    };
    // The first look that saw it began at the step.
    asked_at(&mut run, STEP + 100_001);
    assert!(only(&run, CheckId::O11).what.contains("starting"));
    asked_at(&mut run, STEP + 100_000);
    assert!(judge(&run).passed());
}

/// The view of a server that has not read the answer to its COMMIT yet.
#[test]
fn o11_a_state_that_was_stored_just_now_may_be_shown_as_it_was_before() {
    let mut run = clean();
    let ends_at = |run: &mut Run, number: usize| {
        for look in snapshots(run).into_iter().skip(number) {
            let state = look.state.as_mut().unwrap();
            state.state = "finished".to_owned();
            state.since = "the end".to_owned();
        }
    };
    ends_at(&mut run, 6);
    assert!(only(&run, CheckId::O11).what.contains("said running"));
    for event in &mut run.history {
        if let Event::Api(answer) = event
            && matches!(answer.said, Said::Job { .. })
            && answer.began > STEP * 7
        {
            answer.began = STEP * 7 + 100_000;
        }
    }
    assert!(judge(&run).passed());
}

#[test]
fn o11_a_start_whose_commit_was_not_answered_may_be_starting_still() {
    let mut run = clean();
    // Checkpoint 5 is a start; the look after it shows nothing new.
    let after = snapshots(&mut run).remove(5);
    after.rows.clear();
    for event in &mut run.history {
        if let Event::Fault(fault) = event {
            // Long before it.
            fault.at = fault.at.min(STEP * 3 + 600_000);
        }
    }
    let mut shown = said(&mut run).into_iter().filter_map(|said| match said {
        Said::Job {
            state,
            last_checkpoint,
            ..
        } => Some((state, last_checkpoint)),
        _ => None,
    });
    let (state, last_checkpoint) = shown.nth(4).unwrap();
    *state = "starting".to_owned();
    *last_checkpoint = Some(4);
    drop(shown);
    for said in said(&mut run) {
        if let Said::Checkpoints(rows) = said {
            rows.retain(|row| row.id != 6);
        }
    }
    assert!(only(&run, CheckId::O11).what.contains("starting"));
    run.history.push(Event::Fault(Fault {
        began: Some(STEP * 5),
        at: STEP * 5 + 10_000,
        healed: None,
        kind: "commit-cut".to_owned(),
        effective: true,
    }));
    let verdict = judge(&run);
    assert!(verdict.passed(), "{verdict}");
    let mut shown = said(&mut run).into_iter().filter_map(|said| match said {
        Said::Job {
            last_checkpoint, ..
        } => Some(last_checkpoint),
        _ => None,
    });
    *shown.nth(4).unwrap() = Some(2);
    drop(shown);
    assert_eq!(only(&run, CheckId::O11).checkpoint, Some(2));
}

#[test]
fn o11_a_job_with_a_stop_under_way_may_be_stopping() {
    let mut run = clean();
    let shown = said(&mut run).into_iter().find_map(|said| match said {
        Said::Job { state, .. } => Some(state),
        _ => None,
    });
    *shown.unwrap() = "stopping".to_owned();
    assert!(only(&run, CheckId::O11).what.contains("stopping"));
    for snapshot in snapshots(&mut run) {
        snapshot.state.as_mut().unwrap().operation = Some("stop".to_owned());
    }
    assert!(judge(&run).passed());
}

#[test]
fn o12_a_session_is_left_over() {
    let mut run = clean();
    run.history.push(Event::Residue {
        at: STEP * 10,
        found: vec!["session 17 idle in transaction".to_owned()],
    });
    assert!(only(&run, CheckId::O12).what.contains("session 17"));
}

#[test]
fn o14_the_job_takes_too_long() {
    let mut run = clean();
    for event in &mut run.history {
        if let Event::WriterEnded { at } = event {
            *at = STEP;
        }
    }
    // The second kill healed at 4,800 ms; the last checkpoint came at 7,050 ms.
    run.plan.liveness_ms = 2_249;
    let verdict = judge(&run);
    assert_eq!(verdict.failed_checks(), [CheckId::O14], "{verdict}");
    assert_eq!(verdict.findings(CheckId::O14).len(), PARTITIONS.len());
    run.plan.liveness_ms = 2_250;
    assert!(judge(&run).passed());
}

#[test]
fn o14_the_job_never_comes_to_the_end() {
    let mut run = clean();
    run.journal.push(Written {
        p: 1,
        seq: RECORDS,
        offset: Some(END),
        hash: value(1, RECORDS),
        fate: Fate::Acked,
    });
    let finding = only(&run, CheckId::O14);
    assert_eq!(place(&finding), (Some(1), None, Some(END + 1)));
}

#[test]
fn o14_a_bounded_run_ends_elsewhere() {
    let mut run = clean();
    run.plan.ends = both(END);
    let verdict = judge(&run);
    assert!(verdict.passed(), "{verdict}");
    run.plan.ends.insert(1, END - 2);
    let finding = only(&run, CheckId::O14);
    assert_eq!(place(&finding), (Some(1), None, Some(END - 2)));
}

#[test]
fn o15_a_record_is_in_no_counter() {
    let mut run = clean();
    counters(&mut run).out -= 1;
    assert!(only(&run, CheckId::O15).what.contains("39 out"));
}

#[test]
fn o15_the_counters_do_not_fit_the_positions() {
    let mut run = clean();
    counters(&mut run).records_in += 1;
    counters(&mut run).out += 1;
    assert!(only(&run, CheckId::O15).what.contains("39 to 40"));
}

#[test]
fn too_few_faults_prove_nothing() {
    let mut run = clean();
    let fault = run.history.iter_mut().find_map(|event| match event {
        Event::Fault(fault) => Some(fault),
        _ => None,
    });
    fault.unwrap().effective = false;
    let verdict = judge(&run);
    assert!(!verdict.passed(), "{verdict}");
    assert_eq!(verdict.failed_checks(), []);
    assert!(verdict.problems[0].contains("1 of 2"), "{verdict}");
}

#[test]
fn a_check_with_nothing_to_look_at_fails_unless_the_plan_leaves_it_out() {
    let mut run = clean();
    run.looks.clear();
    let verdict = judge(&run);
    assert_eq!(verdict.failed_checks(), [CheckId::O6], "{verdict}");
    assert_eq!(outcome(&verdict, CheckId::O6), &Outcome::Unproved);
    run.plan
        .left_out
        .insert(CheckId::O6, "nobody read meanwhile".to_owned());
    let verdict = judge(&run);
    assert!(verdict.passed(), "{verdict}");
    assert!(verdict.to_string().contains("nobody read meanwhile"));
}

#[test]
fn a_journal_that_contradicts_itself_is_no_evidence() {
    let mut run = clean();
    run.journal.retain(|written| written.seq != 7);
    let verdict = judge(&run);
    assert!(verdict.problems[0].contains("59 records of partition 0"));
    assert!(!verdict.passed());
}

#[test]
fn a_replay_that_an_operator_ordered_may_be_there_twice() {
    let mut run = clean();
    for number in 4..CHECKPOINTS.len() {
        redecide(&mut run, number, 5);
    }
    for partition in PARTITIONS {
        position(&mut run, 4, partition).next_offset = Some(33);
        said_of(&mut run, 4, partition, 33);
    }
    run.history.push(Event::Move(Move {
        at: STEP * 5 - 100_000,
        to: both(33),
        left: Vector::new(),
    }));
    // Seqs 30 to 39 again; the life's counters too.
    for partition in PARTITIONS {
        run.rows.extend((30..40).map(|seq| Row {
            order: Some(395 + seq),
            ..row(partition, seq)
        }));
    }
    counters(&mut run).from = both(33);
    counters(&mut run).records_in += 20;
    counters(&mut run).out += 20;
    let verdict = judge(&run);
    assert!(verdict.passed(), "{verdict}");
    // Once more than ordered is too often.
    run.rows.push(row(0, 35));
    assert_eq!(only(&run, CheckId::O2).seq, Some(35));
}

fn counters(run: &mut Run) -> &mut Counters {
    let found = run.history.iter_mut().find_map(|event| match event {
        Event::Counters(counters) => Some(counters),
        _ => None,
    });
    found.unwrap()
}

/// A position in the store.
fn position(run: &mut Run, number: usize, partition: i32) -> &mut Position {
    let snapshot = snapshots(run).remove(number);
    snapshot.rows[0].vector.get_mut(&partition).unwrap()
}

/// The API shows the same position of a checkpoint.
fn said_of(run: &mut Run, number: usize, partition: i32, offset: i64) {
    let (id, ..) = CHECKPOINTS[number];
    let mut newest = 0;
    for said in said(run) {
        match said {
            Said::Checkpoints(rows) => {
                newest = rows.iter().map(|row| row.id).max().unwrap();
                for row in rows.iter_mut().filter(|row| row.id == id) {
                    row.vector.get_mut(&partition).unwrap().next_offset = Some(offset);
                }
            }
            Said::Offsets {
                checkpointed: Some(shown),
                ..
            } if newest == id => {
                shown.insert(partition, offset);
            }
            Said::Offsets { .. } | Said::Job { .. } => {}
        }
    }
}

/// Another checkpoint decided the positions, in the store and in what the API says.
fn redecide(run: &mut Run, number: usize, decider: i64) {
    for partition in PARTITIONS {
        decide(run, number, partition, decider);
    }
}

/// The same for one partition.
fn decide(run: &mut Run, number: usize, partition: i32, decider: i64) {
    let (id, ..) = CHECKPOINTS[number];
    position(run, number, partition).position_id = decider;
    for said in said(run) {
        if let Said::Checkpoints(rows) = said {
            for row in rows.iter_mut().filter(|row| row.id == id) {
                row.vector.get_mut(&partition).unwrap().position_id = decider;
            }
        }
    }
}

/// The API was not asked for the group.
fn unsay_the_group(run: &mut Run) {
    run.history.retain(|event| {
        let Event::Api(answer) = event else {
            return true;
        };
        !matches!(answer.said, Said::Offsets { .. })
    });
}
