//! Detection on the real clip, on built-in ones, and on what is made to mislead it.

use super::*;
use crate::clip::{self, Clip, Random};
use crate::features::features;
use crate::source::Input;
use crate::video::Header;
use std::path::Path;

/// One frame's planes, which a test may change.
struct Frame {
    luma: Vec<u8>,
    chroma: Vec<u8>,
}

struct Movie {
    format: Format,
    frames: Vec<Frame>,
}

impl Movie {
    fn of(input: &Input) -> Self {
        let Header { format, bytes } = input.probe().unwrap();
        let mut source = input.open(&Header { format, bytes }).unwrap();
        let mut frames = Vec::new();
        loop {
            let (mut luma, mut chroma) = (vec![0; format.luma_len()], vec![0; format.chroma_len()]);
            if source.read(&mut luma, &mut chroma).unwrap().is_none() {
                return Self { format, frames };
            }
            frames.push(Frame { luma, chroma });
        }
    }

    fn built_in(width: usize, height: usize, seed: u64) -> Self {
        Self::of(&Input::Clip {
            width,
            height,
            seed,
        })
    }

    /// The real clip, which lies in `shared/data` beside a checkout or further up; nothing where it does not.
    fn bikes() -> Option<Self> {
        const PLACE: &str = "shared/data/bikes-160x68.y4m";
        let ancestors = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let Some(path) = ancestors
            .map(|folder| folder.join(PLACE))
            .find(|path| path.exists())
        else {
            eprintln!("skipped: {PLACE} is not there");
            return None;
        };
        Some(Self::of(&Input::File(path)))
    }

    /// Changes every value: luma around black, chroma around grey.
    fn with_values(mut self, value: impl Fn(f32) -> f32) -> Self {
        for frame in &mut self.frames {
            frame
                .luma
                .iter_mut()
                .for_each(|y| *y = (16.0 + value(f32::from(*y) - 16.0)) as u8);
            frame
                .chroma
                .iter_mut()
                .for_each(|c| *c = (128.0 + value(f32::from(*c) - 128.0)) as u8);
        }
        self
    }

    /// Adds up to ±2·`size` to each value, with a triangular distribution.
    fn with_noise(mut self, size: i32) -> Self {
        let mut random = Random::new(3);
        for frame in &mut self.frames {
            for pixel in frame.luma.iter_mut().chain(&mut frame.chroma) {
                let noise = random.within(-size, size) + random.within(-size, size);
                *pixel = (i32::from(*pixel) + noise).clamp(0, 255) as u8;
            }
        }
        self
    }

    fn every(mut self, step: usize) -> Self {
        self.frames = self.frames.into_iter().step_by(step).collect();
        self
    }

    fn mirrored(mut self) -> Self {
        for frame in &mut self.frames {
            frame
                .luma
                .chunks_mut(self.format.width)
                .for_each(<[u8]>::reverse);
            frame
                .chroma
                .chunks_mut(self.format.chroma_width)
                .for_each(<[u8]>::reverse);
        }
        self
    }

    fn reversed(mut self) -> Self {
        self.frames.reverse();
        self
    }

    /// Without its colours.
    fn grey(mut self) -> Self {
        (self.format.chroma_width, self.format.chroma_height) = (0, 0);
        self.frames
            .iter_mut()
            .for_each(|frame| frame.chroma.clear());
        self
    }

    fn features(&self) -> Vec<Features> {
        let of = |frame: &Frame| {
            let mut result = Features::copied(&[0.0; HISTOGRAM], &[0.0; BLOCKS]);
            let Features { histogram, blocks } = &mut result;
            features(&self.format, &frame.luma, &frame.chroma, histogram, blocks);
            result
        };
        self.frames.iter().map(of).collect()
    }

    fn cuts(&self) -> Vec<u64> {
        cuts(&self.features())
    }
}

fn cuts(features: &[Features]) -> Vec<u64> {
    let order: Vec<usize> = (0..features.len()).collect();
    cuts_from(features, &order)
        .iter()
        .map(|cut| cut.frame)
        .collect()
}

fn cuts_from(features: &[Features], order: &[usize]) -> Vec<Cut> {
    let mut detector = Detector::new(Format::yuv420(16, 16));
    let mut cuts = Vec::new();
    for &frame in order {
        let Features { histogram, blocks } = &features[frame];
        cuts.extend(detector.push(frame as u64, histogram, blocks).unwrap());
    }
    let (frames, last) = detector.finish().unwrap();
    assert_eq!(frames, features.len() as u64);
    cuts.extend(last);
    cuts
}

/// Frames of one colour each: luma, Cb, Cr.
fn cards(colours: impl IntoIterator<Item = [u8; 3]>) -> Vec<Features> {
    let format = Format::yuv420(32, 18);
    let frames = colours.into_iter().map(|[y, cb, cr]| {
        let half = format.chroma_len() / 2;
        Frame {
            luma: vec![y; format.luma_len()],
            chroma: [vec![cb; half], vec![cr; half]].concat(),
        }
    });
    let frames = frames.collect();
    Movie { format, frames }.features()
}

const NONE: [u64; 0] = [];
const BIKES: [u64; 5] = [30, 76, 137, 187, 242];

#[test]
fn the_real_clip_has_its_five_cuts_however_it_is_shown() {
    type Variant = fn(Movie) -> Movie;
    let variants: [(&str, Variant); 12] = [
        ("as it is", |movie| movie),
        ("mirrored", Movie::mirrored),
        ("grey", Movie::grey),
        ("a little noise", |movie| movie.with_noise(4)),
        ("much noise", |movie| movie.with_noise(20)),
        ("very much noise", |movie| movie.with_noise(40)),
        ("dark", |movie| movie.with_values(|value| value * 0.4)),
        ("very dark", |movie| movie.with_values(|value| value * 0.1)),
        ("overexposed", |movie| {
            movie.with_values(|value| value * 1.4)
        }),
        ("pale", |movie| {
            movie.with_values(|value| 80.0 + value * 0.5)
        }),
        ("steep", |movie| {
            movie.with_values(|value| value.abs().powf(1.6) / 25.0)
        }),
        ("dark and noisy", |movie| {
            movie.with_values(|value| value * 0.4).with_noise(6)
        }),
    ];
    for (name, variant) in variants {
        let Some(movie) = Movie::bikes() else { return };
        assert_eq!(variant(movie).cuts(), BIKES, "{name}");
    }
}

#[test]
fn half_the_frames_of_the_real_clip_show_the_same_cuts() {
    let Some(movie) = Movie::bikes() else { return };
    assert_eq!(movie.every(2).cuts(), BIKES.map(|cut| cut.div_ceil(2)));
}

#[test]
fn the_real_clip_has_the_same_cuts_backwards() {
    let Some(movie) = Movie::bikes() else { return };
    let mut expected = BIKES.map(|cut| 250 - cut);
    expected.reverse();
    assert_eq!(movie.reversed().cuts(), expected);
}

#[test]
fn the_built_in_clip_has_its_known_cuts_in_any_size_and_with_any_seed() {
    for (width, height, seeds) in [(320, 180, 1..2), (64, 36, 0..12), (33, 47, 0..6)] {
        for seed in seeds {
            let found = Movie::built_in(width, height, seed).cuts();
            assert_eq!(found, clip::CUTS, "{width}×{height}, seed {seed}");
        }
    }
}

#[test]
fn the_built_in_clip_has_its_known_cuts_when_dark_noisy_or_fast() {
    let noisy = Movie::built_in(160, 90, 1).with_noise(20);
    assert_eq!(noisy.cuts(), clip::CUTS);
    let dark = Movie::built_in(160, 90, 1).with_values(|value| value * 0.2);
    assert_eq!(dark.cuts(), clip::CUTS);
    let fast = Movie::built_in(160, 90, 1).every(2);
    assert_eq!(fast.cuts(), clip::CUTS.map(|cut| cut.div_ceil(2)));
}

#[test]
fn frames_may_arrive_in_any_order() {
    let features = Movie::built_in(32, 18, 1).features();
    let mut order: Vec<usize> = (0..features.len()).collect();
    let straight = cuts_from(&features, &order);
    let mut random = Random::new(1);
    for chunk in order.chunks_mut(7) {
        chunk.sort_by_key(|_| random.next());
    }
    assert_eq!(cuts_from(&features, &order), straight);
    order.reverse();
    assert_eq!(cuts_from(&features, &order), straight);
}

#[test]
fn a_cut_is_reported_before_the_input_ends() {
    let features = Movie::built_in(32, 18, 1).features();
    let mut detector = Detector::new(Format::yuv420(32, 18));
    for (frame, features) in (0..).zip(&features[..clip::CUTS[0] as usize + SIDE + SURROUNDINGS]) {
        let cuts = detector
            .push(frame, &features.histogram, &features.blocks)
            .unwrap();
        if let [cut] = cuts[..] {
            assert_eq!(
                (cut.frame, cut.time),
                (clip::CUTS[0], clip::CUTS[0] as f64 / 25.0)
            );
            assert!(cut.score > 0.5 && cut.score < 1.0);
            return;
        }
    }
    panic!("the cut was held back");
}

#[test]
fn cuts_near_the_ends_are_found_and_short_inputs_are_no_trouble() {
    let black = [16, 128, 128];
    let red = [80, 90, 240];
    assert_eq!(cuts(&cards([])), NONE);
    assert_eq!(cuts(&cards([black])), NONE);
    assert_eq!(cuts(&cards([black, black])), NONE);
    assert_eq!(cuts(&cards([black, red])), [1]);
    for at in 1..40 {
        let movie = cards((0..40).map(|frame| if frame < at { black } else { red }));
        assert_eq!(cuts(&movie), [at], "{at}");
    }
}

#[test]
fn cards_that_differ_in_light_or_in_colour_only_are_told_apart() {
    let grey = [120, 128, 128];
    for other in [
        [150, 128, 128],
        [16, 128, 128],
        [120, 90, 128],
        [120, 128, 190],
    ] {
        let movie = cards((0..30).map(|frame| if frame < 15 { grey } else { other }));
        assert_eq!(cuts(&movie), [15], "{other:?}");
    }
}

#[test]
fn flashes_of_up_to_three_frames_are_no_cuts() {
    for length in 1..SIDE as u64 {
        let mut movie = Movie::built_in(64, 36, 1);
        movie.frames.truncate(40);
        for frame in 20..20 + length as usize {
            movie.frames[frame].luma.fill(235);
            movie.frames[frame].chroma.fill(128);
        }
        assert_eq!(movie.cuts(), NONE, "{length}");
    }
}

#[test]
fn a_quick_succession_of_shots_is_a_cut_each() {
    // Seven frames of each shot of ten clips: half as long again as a flash may be.
    let mut frames = Vec::new();
    for seed in 0..10 {
        let mut clip = Clip::new(64, 36, seed);
        let format = clip.format();
        for _ in 0..7 {
            let (mut luma, mut chroma) = (vec![0; format.luma_len()], vec![0; format.chroma_len()]);
            clip.read(&mut luma, &mut chroma);
            frames.push(Frame { luma, chroma });
        }
    }
    let format = Format::yuv420(64, 36);
    let found = Movie { format, frames }.cuts();
    assert_eq!(found, (1..10).map(|shot| shot * 7).collect::<Vec<u64>>());
}

#[test]
fn a_lost_frame_is_an_error_that_names_it() {
    let features = cards([[16, 128, 128]; 3]);
    let mut detector = Detector::new(Format::yuv420(32, 18));
    for frame in [0, 2] {
        detector
            .push(frame, &features[0].histogram, &features[0].blocks)
            .unwrap();
    }
    let error = detector.finish().unwrap_err().to_string();
    assert!(error.contains("frame 1 never arrived"), "{error}");
}
