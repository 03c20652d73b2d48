// Canvas helpers. Colour says who, pattern says what: a picture without colours can still be read.

const GOLDEN_ANGLE = 137.508;
const FIRST_HUE = 218;
let theme = null;
const known = new Map(); // number and opacity -> colour
const hatches = new Map(); // number -> pattern

/** The style sheet's colours, read once per theme. */
export function colours() {
  if (theme) return theme;
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "muted", "line", "panel", "free", "cached", "accent", "bad"];
  theme = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  theme.isDark = style.colorScheme.startsWith("dark");
  return theme;
}

export function forgetColours() {
  theme = null;
  known.clear();
  hatches.clear();
}

/** The colour of the n-th sequence: neighbours in time are far apart on the circle. */
export function colourOf(number, alpha = 1) {
  const key = number + alpha / 2;
  if (!known.has(key)) known.set(key, newColour(number, alpha));
  return known.get(key);
}

function newColour(number, alpha) {
  const hue = (FIRST_HUE + number * GOLDEN_ANGLE) % 360;
  const lightness = colours().isDark ? 64 : 44;
  return `hsla(${hue.toFixed(0)}, 62%, ${lightness - (number % 3) * 5}%, ${alpha})`;
}

/** Fit a canvas to its place on the screen and clear it; the context draws in CSS pixels. */
export function prepare(canvas, width, height) {
  const ratio = Math.min(devicePixelRatio || 1, 2);
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Diagonal lines in a colour, for prefills. */
export function hatch(context, number) {
  if (!hatches.has(number)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const draw = tile.getContext("2d");
    draw.fillStyle = colourOf(number, 0.28);
    draw.fillRect(0, 0, 6, 6);
    draw.strokeStyle = colourOf(number);
    draw.lineWidth = 1.6;
    draw.beginPath();
    for (const shift of [-6, 0, 6]) {
      draw.moveTo(shift - 1, 7);
      draw.lineTo(shift + 7, -1);
    }
    draw.stroke();
    hatches.set(number, context.createPattern(tile, "repeat"));
  }
  return hatches.get(number);
}

/** A line of dots or dashes, for waits. */
export function broken(context, x0, x1, y, colour, dash, width = 2) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(x0, y);
  context.lineTo(x1, y);
  context.stroke();
  context.setLineDash([]);
}
