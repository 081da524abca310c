//! Where an output comes from: its number, its share of the weight of its inputs, and the segments it is divided into.

use std::sync::Arc;

use crate::card::Card;
use crate::home::Home;
use crate::item::{FULL, Item, Member, Portion, Share, View, divide};
use crate::reading::numel;

/// Gives an output its number, and its part of the weight of what it was made of.
pub(crate) fn descend(
    item: &mut Item,
    cards: &[&Arc<Card>],
    next_new: &mut u64,
    next_input: Option<&mut u64>,
) {
    let mut fresh = || {
        *next_new += 1;
        *next_new - 1
    };
    match cards {
        [] => {
            item.id = match next_input {
                Some(next) => {
                    *next += 1;
                    *next - 1
                }
                None => fresh(),
            };
            item.members = vec![Member {
                root: item.id,
                weight: FULL,
            }];
        }
        [one] => {
            let (nth, members) = one.derive();
            let (
                id,
                Portion {
                    part,
                    parts,
                    copy,
                    copies,
                },
            ) = (one.item, one.portion());
            item.members = members;
            if nth == 0 {
                (item.id, item.part, item.parts) = (id, part, parts);
                (item.copy, item.copies) = (copy, copies);
                one.goes_on();
            } else {
                item.id = fresh();
                item.parents = vec![id];
            }
        }
        several => {
            let (id, first) = (several[0].item, several[0].portion());
            let mut ids: Vec<u64> = Vec::new();
            for card in several {
                let of_card = card.identity().0;
                if !ids.contains(&of_card) {
                    ids.push(of_card);
                }
                for member in card.derive().1 {
                    match item
                        .members
                        .iter_mut()
                        .find(|known| known.root == member.root)
                    {
                        Some(known) => known.weight += member.weight,
                        None => item.members.push(member),
                    }
                }
            }
            // All segments of one item: it is whole again.
            if ids.len() == 1 && several.len() as u32 == first.parts {
                item.id = id;
                (item.copy, item.copies) = (first.copy, first.copies);
                let same = |card: &&&Arc<Card>| card.portion().copies() == first.copies();
                several.iter().filter(same).for_each(|card| card.goes_on());
            } else {
                item.id = fresh();
                item.parents = ids;
            }
        }
    }
}

/// Says of each slot what is valid in it, where only "all" was said.
pub(crate) fn say_what_is_valid(home: &Home, item: &mut Item) {
    for share in &mut item.shares {
        if let Some(known) = home.upstream.get(share.rank)
            && share.views.is_empty()
        {
            share.views.clone_from(&known.layout.whole);
        }
    }
}

/// The segments of an item, each a part of its rows.
pub(crate) fn fork(whole: Item, n: u32) -> Vec<Item> {
    let mut shares: Vec<Vec<Share>> = vec![Vec::new(); n as usize];
    for share in &whole.shares {
        for (segment, part) in segments(share, n).into_iter().enumerate() {
            shares[segment].push(part);
        }
    }
    divide(&whole.members, n)
        .into_iter()
        .zip(shares)
        .enumerate()
        .map(|(segment, (members, shares))| Item {
            part: whole.part * n + segment as u32,
            parts: whole.parts.saturating_mul(n),
            members,
            shares,
            ..whole.clone()
        })
        .collect()
}

/// Divides what a slot holds into `n` segments along the first dimension, as evenly as it goes, the larger ones first.
fn segments(share: &Share, n: u32) -> Vec<Share> {
    (0..n as usize)
        .map(|segment| {
            let views = share
                .views
                .iter()
                .map(|view| segment_of(view, segment, n as usize))
                .collect();
            Share {
                views,
                ..share.clone()
            }
        })
        .collect()
}

fn segment_of(view: &View, segment: usize, n: usize) -> View {
    let Some((&rows, inner)) = view.shape.split_first() else {
        // What has no rows goes to each.
        return view.clone();
    };
    let (each, rest) = (rows / n, rows % n);
    let first = each * segment + segment.min(rest);
    let count = each + usize::from(segment < rest);
    let row = numel(inner).unwrap_or(0);
    let mut shape = view.shape.clone();
    shape[0] = count;
    View {
        start: view.start + first * row,
        shape,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eleven_rows_in_three_segments_are_four_four_and_three() {
        let view = View {
            start: 0,
            shape: vec![11, 2],
        };
        let parts: Vec<_> = (0..3).map(|at| segment_of(&view, at, 3)).collect();
        assert_eq!(
            parts.iter().map(|part| part.shape[0]).collect::<Vec<_>>(),
            [4, 4, 3]
        );
        assert_eq!(
            parts.iter().map(|part| part.start).collect::<Vec<_>>(),
            [0, 8, 16]
        );
    }
}
