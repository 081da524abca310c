//! The built-in clip: a video that is computed, so that the example runs without any file and its cuts are known.
//!
//! Each shot is a textured picture that a camera pans over, with discs that bounce through it and a little grain. On
//! the way come a flash of two frames and one of a single frame, a slow fade through black and a slow dissolve: large
//! changes that are no cuts. Everything is integer arithmetic from a seed, so each frame is the same on every machine,
//! and any frame can be rendered without those before it.

use std::io::{self, Write};

use crate::video::Format;

/// First frames of the shots that begin with a hard cut.
pub(crate) const CUTS: [u64; 4] = [42, 97, 203, 228];
/// Frames in the clip: 12 seconds.
pub(crate) const FRAMES: u64 = 300;

/// Where each shot begins. Shot 3 follows shot 2 in the black between two fades, shot 6 grows out of shot 5.
const SHOTS: [u64; 7] = [0, 42, 97, 150, 203, 228, DISSOLVE.0];
const FLASHES: [u64; 3] = [70, 71, 215];
/// First frame of the fade to black, and the first frame at full light again; shot 3 begins in the middle.
const FADE: (u64, u64) = (126, 174);
/// First and last frame in which both shots are seen.
const DISSOLVE: (u64, u64) = (250, 282);

/// The clip in one size.
pub(crate) struct Clip {
    format: Format,
    seed: u64,
    frame: u64,
    /// The shots in use: the current one and, in a dissolve, the one it turns into.
    shots: Vec<Shot>,
    /// The second shot's planes in a dissolve.
    scratch: Vec<u8>,
}

impl Clip {
    pub(crate) fn new(width: usize, height: usize, seed: u64) -> Self {
        Self {
            format: Format::yuv420(width, height),
            seed,
            frame: 0,
            shots: Vec::new(),
            scratch: Vec::new(),
        }
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Renders the next frame into `luma` ([`Format::luma_len`] bytes) and `chroma` ([`Format::chroma_len`] bytes: Cb,
    /// then Cr). Returns its number, or nothing after the last one.
    pub(crate) fn read(&mut self, luma: &mut [u8], chroma: &mut [u8]) -> Option<u64> {
        if self.frame == FRAMES {
            return None;
        }
        let frame = self.frame;
        self.frame += 1;
        self.render(frame, luma, chroma);
        Some(frame)
    }

    /// Renders one frame.
    fn render(&mut self, frame: u64, luma: &mut [u8], chroma: &mut [u8]) {
        let dissolving = (DISSOLVE.0..=DISSOLVE.1).contains(&frame);
        let newest = SHOTS.iter().rposition(|&start| start <= frame).unwrap_or(0);
        let index = if dissolving { newest - 1 } else { newest };
        self.shot(index).render(frame, luma, chroma);

        if dissolving {
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.resize(luma.len() + chroma.len(), 0);
            let (next_luma, next_chroma) = scratch.split_at_mut(luma.len());
            self.shot(newest).render(frame, next_luma, next_chroma);
            let share = (frame - DISSOLVE.0 + 1) * 256 / (DISSOLVE.1 - DISSOLVE.0 + 2);
            blend(luma, next_luma, share as u32);
            blend(chroma, next_chroma, share as u32);
            self.scratch = scratch;
        }
        if FLASHES.contains(&frame) {
            apply(luma, |y| y + (245 - y) * 3 / 4);
            apply(chroma, |c| 128 + (c - 128) / 4);
        }
        if (FADE.0..FADE.1).contains(&frame) {
            let middle = (FADE.0 + FADE.1) / 2;
            let half = (middle - FADE.0) as i32;
            let light = (frame.abs_diff(middle) as i32 * 256) / half;
            apply(luma, |y| 16 + (y - 16) * light / 256);
            apply(chroma, |c| 128 + (c - 128) * light / 256);
        }
        grain(
            luma,
            Random::new(self.seed ^ (frame << 32) ^ 0x6772_6169_6e00),
        );
    }

    fn shot(&mut self, index: usize) -> &Shot {
        if let Some(at) = self.shots.iter().position(|shot| shot.index == index) {
            return &self.shots[at];
        }
        if self.shots.len() == 2 {
            self.shots.remove(0);
        }
        self.shots.push(Shot::new(index, self.format, self.seed));
        &self.shots[self.shots.len() - 1]
    }
}

/// Writes the whole clip as YUV4MPEG2, as another program would pipe it in.
pub(crate) fn to_y4m(mut clip: Clip, out: impl Write) -> Result<(), y4m::Error> {
    let format = clip.format();
    let rate = y4m::Ratio::new(format.rate.0 as usize, format.rate.1 as usize);
    let mut encoder = y4m::encode(format.width, format.height, rate)
        .with_colorspace(y4m::Colorspace::C420jpeg)
        .write_header(io::BufWriter::new(out))?;
    let mut luma = vec![0; format.luma_len()];
    let mut chroma = vec![0; format.chroma_len()];
    while clip.read(&mut luma, &mut chroma).is_some() {
        let (cb, cr) = chroma.split_at(chroma.len() / 2);
        encoder.write_frame(&y4m::Frame::new([&luma, cb, cr], None))?;
    }
    Ok(())
}

/// One shot: a picture that repeats in both directions, and what moves over it.
struct Shot {
    index: usize,
    format: Format,
    luma: Vec<u8>,
    chroma: Vec<u8>,
    /// The camera's way per frame, in 1/1024 of the width and the height.
    pan: (i64, i64),
    discs: Vec<Disc>,
}

struct Disc {
    /// Place at frame 0 and way per frame, in 1/1024 of the width and the height.
    start: (i64, i64),
    step: (i64, i64),
    /// In 1/1024 of the height.
    radius: i64,
    colour: [u8; 3],
}

impl Shot {
    fn new(index: usize, format: Format, seed: u64) -> Self {
        let mut random = Random::new(seed.wrapping_mul(0x1_0001).wrapping_add(index as u64 + 1));
        let (width, height) = (format.width, format.height);
        let light = random.within(80, 150);
        let contrast = random.within(50, 70);
        let coarse = Noise::new(&mut random, 5, 4);
        let fine = Noise::new(&mut random, 23, 13);
        let luma = picture(width, height, |x, y| {
            light + (coarse.at(x, y) * contrast + fine.at(x, y) * (contrast / 3)) / 128
        });
        let mut chroma = Vec::with_capacity(format.chroma_len());
        for _ in 0..2 {
            let tint = random.within(-25, 25);
            let noise = Noise::new(&mut random, 4, 3);
            chroma.extend(picture(
                format.chroma_width,
                format.chroma_height,
                |x, y| 128 + tint + noise.at(x, y) * 20 / 128,
            ));
        }
        let discs = (0..3).map(|_| Disc {
            start: (random.within(0, 1023).into(), random.within(0, 1023).into()),
            step: (random.within(-14, 14).into(), random.within(-14, 14).into()),
            radius: random.within(50, 140).into(),
            colour: [
                random.within(30, 225) as u8,
                random.within(80, 176) as u8,
                random.within(80, 176) as u8,
            ],
        });
        Self {
            index,
            format,
            luma,
            chroma,
            discs: discs.collect(),
            pan: (random.within(-10, 10).into(), random.within(-4, 4).into()),
        }
    }

    fn render(&self, frame: u64, luma: &mut [u8], chroma: &mut [u8]) {
        let (width, height) = (self.format.width, self.format.height);
        let (chroma_width, chroma_height) = (self.format.chroma_width, self.format.chroma_height);
        let size = chroma_width * chroma_height;
        let (cb, cr) = chroma.split_at_mut(size);
        self.pan_over(&self.luma, frame, width, height, luma);
        self.pan_over(&self.chroma[..size], frame, chroma_width, chroma_height, cb);
        self.pan_over(&self.chroma[size..], frame, chroma_width, chroma_height, cr);
        for disc in &self.discs {
            disc.draw(frame, width, height, disc.colour[0], luma);
            disc.draw(frame, chroma_width, chroma_height, disc.colour[1], cb);
            disc.draw(frame, chroma_width, chroma_height, disc.colour[2], cr);
        }
    }

    /// Copies the picture as the camera sees it, wrapped around at the edges.
    fn pan_over(&self, picture: &[u8], frame: u64, width: usize, height: usize, plane: &mut [u8]) {
        let moved = |step: i64, size: usize| {
            (frame as i64 * step * size as i64 / 1024).rem_euclid(size as i64) as usize
        };
        let (left, top) = (moved(self.pan.0, width), moved(self.pan.1, height));
        for (y, row) in plane.chunks_exact_mut(width).enumerate() {
            let from = &picture[(y + top) % height * width..][..width];
            row[..width - left].copy_from_slice(&from[left..]);
            row[width - left..].copy_from_slice(&from[..left]);
        }
    }
}

impl Disc {
    fn draw(&self, frame: u64, width: usize, height: usize, value: u8, plane: &mut [u8]) {
        let place = |start: i64, step: i64, size: usize| {
            bounce(start + step * frame as i64) * size as i64 / 1024
        };
        let x = place(self.start.0, self.step.0, width);
        let y = place(self.start.1, self.step.1, height);
        // Planes of one frame differ in size: a disc keeps its shape relative to each of them.
        let radius_y = (self.radius * height as i64 / 1024).max(1);
        let radius_x = (radius_y * width as i64 * 9 / (height as i64 * 16)).max(1);
        for (row, pixels) in plane.chunks_exact_mut(width).enumerate() {
            let away = row as i64 - y;
            if away.abs() > radius_y {
                continue;
            }
            let half = (radius_y * radius_y - away * away).isqrt() * radius_x / radius_y;
            let from = (x - half).clamp(0, width as i64) as usize;
            let to = (x + half + 1).clamp(0, width as i64) as usize;
            pixels[from..to].fill(value);
        }
    }
}

/// Folds a straight way into 0..1024, as if it were thrown back at both ends.
fn bounce(position: i64) -> i64 {
    let folded = position.rem_euclid(2048);
    if folded < 1024 { folded } else { 2047 - folded }
}

fn picture(width: usize, height: usize, value: impl Fn(usize, usize) -> i32) -> Vec<u8> {
    // Noise takes places in 1/65536 of the size.
    let at = |index: usize, size: usize| index * 65536 / size;
    let rows = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    rows.map(|(x, y)| value(at(x, width), at(y, height)).clamp(16, 235) as u8)
        .collect()
}

/// Smooth random values on a grid that repeats.
struct Noise {
    columns: usize,
    rows: usize,
    /// From −128 to 127.
    values: Vec<i32>,
}

impl Noise {
    fn new(random: &mut Random, columns: usize, rows: usize) -> Self {
        let values = (0..columns * rows)
            .map(|_| random.within(-128, 127))
            .collect();
        Self {
            columns,
            rows,
            values,
        }
    }

    /// The value at a place given in 1/65536 of the width and the height.
    fn at(&self, x: usize, y: usize) -> i32 {
        let (x, y) = (x * self.columns, y * self.rows);
        let (column, row) = (x >> 16, y >> 16);
        let (along, down) = ((x & 0xffff) as i32 >> 8, (y & 0xffff) as i32 >> 8);
        let knot = |column: usize, row: usize| {
            self.values[row % self.rows * self.columns + column % self.columns]
        };
        let upper = knot(column, row) * (256 - along) + knot(column + 1, row) * along;
        let lower = knot(column, row + 1) * (256 - along) + knot(column + 1, row + 1) * along;
        (upper * (256 - down) + lower * down) >> 16
    }
}

fn blend(plane: &mut [u8], other: &[u8], share: u32) {
    for (pixel, &other) in plane.iter_mut().zip(other) {
        *pixel = ((u32::from(*pixel) * (256 - share) + u32::from(other) * share) >> 8) as u8;
    }
}

fn apply(plane: &mut [u8], value: impl Fn(i32) -> i32) {
    let table: [u8; 256] = std::array::from_fn(|index| value(index as i32).clamp(0, 255) as u8);
    for pixel in plane {
        *pixel = table[usize::from(*pixel)];
    }
}

/// Adds −2 to +1 to each pixel.
fn grain(plane: &mut [u8], mut random: Random) {
    for pixels in plane.chunks_mut(32) {
        let mut bits = random.next();
        for pixel in pixels {
            *pixel = pixel.saturating_add((bits & 3) as u8).saturating_sub(2);
            bits >>= 2;
        }
    }
}

/// SplitMix64: small, and good enough for pictures.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn within(&mut self, low: i32, high: i32) -> i32 {
        let span = u64::from(low.abs_diff(high)) + 1;
        low + (self.next() % span) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::video::{Header, Video};

    fn frames(width: usize, height: usize, seed: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut clip = Clip::new(width, height, seed);
        let format = clip.format();
        let mut frames = Vec::new();
        loop {
            let (mut luma, mut chroma) = (vec![1; format.luma_len()], vec![1; format.chroma_len()]);
            let Some(frame) = clip.read(&mut luma, &mut chroma) else {
                return frames;
            };
            assert_eq!(frame, frames.len() as u64);
            frames.push((luma, chroma));
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_clip_and_another_seed_another_one() {
        let first = frames(32, 18, 5);
        assert_eq!(first.len() as u64, FRAMES);
        assert!(first == frames(32, 18, 5));
        assert!(first != frames(32, 18, 6));
    }

    #[test]
    fn what_the_writer_writes_is_read_back_byte_by_byte() {
        let mut stream = Vec::new();
        to_y4m(Clip::new(33, 17, 1), &mut stream).unwrap();
        let mut reader = stream.as_slice();
        let header = Header::read(&mut reader, "clip").unwrap();
        assert_eq!(header.format, Format::yuv420(33, 17));
        let mut video = Video::after(&header, reader, "clip");
        for (luma, chroma) in frames(33, 17, 1) {
            let (mut read_luma, mut read_chroma) = (vec![0; luma.len()], vec![0; chroma.len()]);
            video
                .read(&mut read_luma, &mut read_chroma)
                .unwrap()
                .expect("a frame");
            assert!(read_luma == luma && read_chroma == chroma);
        }
    }

    #[test]
    fn any_size_can_be_rendered() {
        for (width, height) in [(1, 1), (2, 1), (1, 7), (15, 8), (17, 301)] {
            assert_eq!(frames(width, height, 0).len() as u64, FRAMES);
        }
    }

    #[test]
    fn flashes_are_bright_and_the_fade_ends_in_black() {
        let frames = frames(64, 36, 0);
        let light = |frame: usize| {
            let luma = &frames[frame].0;
            luma.iter().map(|&y| u64::from(y)).sum::<u64>() / luma.len() as u64
        };
        for flash in [70, 71, 215] {
            assert!(light(flash) > 190, "{}", light(flash));
        }
        assert!(light(150) < 18, "{}", light(150));
    }
}
