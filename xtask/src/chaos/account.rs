//! The account of all messages: delivered once, or lost with the consumer that had it in its hands; in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::receipts::Receipt;

/// Who takes what is left when all have ended.
pub(crate) const NOBODY: u64 = 0;

/// A process that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) life: u64,
    pub(crate) killed: bool,
    /// Whether it died where it had no message in its hands.
    pub(crate) held_none: bool,
    pub(crate) sends: bool,
    pub(crate) in_lane: bool,
}

/// What is wrong, in words.
pub(crate) fn settle(lives: &[Life], receipts: &[Receipt]) -> Vec<String> {
    let mut wrong = Vec::new();
    // Each life writes down what it sent in order, without gaps.
    let mut sent: HashMap<u64, u64> = HashMap::new();
    let mut taken: BTreeMap<u64, Vec<Receipt>> = BTreeMap::new();
    for receipt in receipts {
        if receipt.taken {
            taken.entry(receipt.sender).or_default().push(*receipt);
        } else {
            *sent.entry(receipt.sender).or_default() += 1;
        }
    }
    let by_life: HashMap<u64, &Life> = lives.iter().map(|life| (life.life, life)).collect();
    let dead_takers = || {
        let takers = lives.iter().filter(|life| !life.sends && !life.in_lane);
        takers.filter(|life| life.killed)
    };
    let (mut lost, mut descents) = (0, 0);
    for sender in lives.iter().filter(|life| life.sends) {
        let count = sent.get(&sender.life).copied().unwrap_or(0);
        let got = taken.remove(&sender.life).unwrap_or_default();
        let numbers: BTreeSet<u64> = got.iter().map(|receipt| receipt.number).collect();
        let who = format!("life {}, which noted {count} messages as sent", sender.life);
        if numbers.len() < got.len() {
            wrong.push(format!(
                "of {who}, {} came twice",
                got.len() - numbers.len()
            ));
        }
        // It may have died between the put and its receipt.
        let known = count + u64::from(sender.killed);
        if let Some(last) = numbers.last()
            && *last >= known
        {
            wrong.push(format!("of {who}, number {last} came"));
        }
        if sender.in_lane {
            in_lane(&who, count, &got, &by_life, &mut wrong);
            continue;
        }
        lost += count - numbers.range(..count).count() as u64;
        let mut last: HashMap<u64, u64> = HashMap::new();
        for receipt in got.iter().filter(|receipt| receipt.by != NOBODY) {
            let before = last.insert(receipt.by, receipt.number);
            descents += usize::from(before.is_some_and(|before| before > receipt.number));
        }
    }
    if let Some((life, got)) = taken.first_key_value() {
        wrong.push(format!(
            "{} messages came of life {life}, which sends nothing",
            got.len()
        ));
    }
    let dead = dead_takers().count();
    let may_lose = dead_takers().filter(|life| !life.held_none).count();
    if lost > may_lose as u64 {
        wrong.push(format!(
            "{lost} messages were lost in the queue, with {may_lose} consumers that died where they may have had one"
        ));
    }
    // A message that is handed back comes late, once.
    if descents > dead {
        wrong.push(format!(
            "{descents} times a producer's messages came out of order, with {dead} dead consumers"
        ));
    }
    wrong
}

/// A lane has one taker at a time; what it was given, it gets without a gap, and all of it if it lives.
fn in_lane(
    who: &str,
    count: u64,
    got: &[Receipt],
    lives: &HashMap<u64, &Life>,
    wrong: &mut Vec<String>,
) {
    if !got
        .iter()
        .map(|receipt| receipt.number)
        .eq(0..got.len() as u64)
    {
        wrong.push(format!(
            "of {who} in a lane, {} came with gaps or out of order",
            got.len()
        ));
    }
    let takers: BTreeSet<u64> = got.iter().map(|receipt| receipt.by).collect();
    if takers.len() > 1 {
        wrong.push(format!("what {who} in a lane went to {takers:?}"));
    }
    let lived = takers
        .first()
        .and_then(|life| lives.get(life))
        .is_some_and(|life| !life.killed);
    if lived && (got.len() as u64) < count {
        wrong.push(format!(
            "of {who} in a lane, only {} came, and the taker lived",
            got.len()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::{Life, settle};
    use crate::chaos::receipts::Receipt;

    const LIVES: [Life; 4] = [
        life(1, false, true, false),
        life(2, true, false, false),
        life(3, false, true, true),
        life(4, false, false, true),
    ];

    const fn life(life: u64, killed: bool, sends: bool, in_lane: bool) -> Life {
        Life {
            life,
            killed,
            held_none: false,
            sends,
            in_lane,
        }
    }

    fn sent(sender: u64, count: u64) -> Vec<Receipt> {
        (0..count)
            .map(|number| Receipt {
                taken: false,
                sender,
                number,
                by: sender,
            })
            .collect()
    }

    fn taken(sender: u64, numbers: &[u64], by: u64) -> Vec<Receipt> {
        numbers
            .iter()
            .map(|&number| Receipt {
                taken: true,
                sender,
                number,
                by,
            })
            .collect()
    }

    fn wrong(receipts: &[Vec<Receipt>]) -> String {
        settle(&LIVES, &receipts.concat()).join("\n")
    }

    #[test]
    fn one_message_may_be_lost_with_each_dead_consumer_and_come_late() {
        assert_eq!(wrong(&[sent(1, 4), taken(1, &[0, 3, 2], 2)]), "");
        let text = wrong(&[sent(1, 4), taken(1, &[0, 2], 2)]);
        assert!(text.contains("2 messages were lost"), "{text}");
        // One that had none in its hands may lose none.
        let lives = LIVES.map(|life| Life {
            held_none: true,
            ..life
        });
        let text = settle(&lives, &[sent(1, 2), taken(1, &[1], 2)].concat()).join("");
        assert!(text.contains("1 messages were lost"), "{text}");
        let text = wrong(&[sent(1, 4), taken(1, &[3, 2, 1, 0], 2)]);
        assert!(text.contains("3 times"), "{text}");
    }

    #[test]
    fn what_comes_twice_or_was_never_sent_is_found() {
        let text = wrong(&[sent(1, 2), taken(1, &[0, 1, 1], 2)]);
        assert!(text.contains("1 came twice"), "{text}");
        let text = wrong(&[sent(1, 2), taken(1, &[0, 1, 2], 2)]);
        assert!(text.contains("number 2 came"), "{text}");
        let text = wrong(&[taken(9, &[0], 2)]);
        assert!(text.contains("sends nothing"), "{text}");
    }

    #[test]
    fn a_lane_has_no_gap_and_loses_nothing_for_a_taker_that_lives() {
        assert_eq!(wrong(&[sent(3, 3), taken(3, &[0, 1, 2], 4)]), "");
        let text = wrong(&[sent(3, 3), taken(3, &[0, 2], 4)]);
        assert!(text.contains("gaps"), "{text}");
        let text = wrong(&[sent(3, 3), taken(3, &[0, 1], 4)]);
        assert!(text.contains("the taker lived"), "{text}");
    }
}
