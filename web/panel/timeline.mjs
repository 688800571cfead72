// Draws a run's steps as bars. The lower part of a bar is the step's communication.
// `layOutBars` and `makePaths` are pure. `Timeline` draws one path for all bars of a colour, however many there are.

import { element, svg } from '../elements.mjs'
import { setAttribute } from './dom.mjs'
import { formatSeconds } from './format.mjs'

const HEIGHT = 40
const SLOT = 10
const GAP = 1.5
const DENSE = 80 // with this many slots, bars are too thin for gaps
const MOST_SLOTS = 500 // the server keeps this many steps of a run
const LEAST_SLOTS = 12 // keeps the bars of a short run narrow
const CLIP = 2 // medians; a longer bar, often the first step's, is cut off there
const CUT = { y: 4, height: 3 } // the mark on a bar that is cut off

/**
 * Lays out a bar for each step. Heights are shares of the drawing's height.
 *
 * steps: each [seconds, its communication seconds]. total: how many steps there will be, or null. first: the number of
 * the first of these steps.
 */
export function layOutBars(steps, total, first = 1) {
  const lengths = steps.map(([length]) => length).sort((a, b) => a - b)
  const longest = Math.min(lengths.at(-1) ?? 0, CLIP * (lengths[lengths.length >> 1] ?? 0)) || 1
  const slots = Math.max(steps.length, first === 1 ? Math.min(total ?? 0, MOST_SLOTS) : 0, LEAST_SLOTS)
  const drawn = steps.map(([length, waiting], at) => {
    const height = Math.min(length / longest, 1)
    const share = length > 0 ? Math.min(waiting / length, 1) : 0
    return { number: first + at, length, waiting, height, below: height * share, cut: length > longest }
  })
  return { slots, bars: drawn }
}

/** Makes the paths of these bars: for computing, for communication, and for the marks of bars that are cut off. */
export function makePaths({ slots, bars: drawn }) {
  const gap = slots < DENSE ? GAP : 0
  const found = { compute: '', communication: '', cut: '' }
  for (const [at, { height, below, cut }] of drawn.entries()) {
    const x = at * SLOT + gap / 2
    found.compute += makeBox(x, HEIGHT * (1 - height), SLOT - gap, HEIGHT * (height - below))
    found.communication += makeBox(x, HEIGHT * (1 - below), SLOT - gap, HEIGHT * below)
    if (cut) found.cut += makeBox(at * SLOT, CUT.y, SLOT, CUT.height)
  }
  return found
}

const makeBox = (x, y, width, height) =>
  height > 0 ? `M${x} ${y.toFixed(2)}h${width}v${height.toFixed(2)}h-${width}z` : ''

/** The drawing of one run. */
export class Timeline {
  /** t: finds the texts. */
  constructor(t) {
    this.t = t
    this.paths = Object.fromEntries(
      ['compute', 'communication', 'cut'].map((part) => [part, svg('path', { class: `paralleldit-${part}` })])
    )
    this.drawing = svg('svg', { role: 'img', preserveAspectRatio: 'none' }, ...Object.values(this.paths))
    this.element = element('div', { class: 'paralleldit-timeline' }, this.drawing)
    this.element.addEventListener('pointermove', (event) => this.showNumbers(event))
    this.known = layOutBars([], null)
  }

  /** label: describes the drawing to people who do not see it. */
  update(run, label) {
    const first = run.made - run.steps.length + 1 // the server keeps only the last steps of a long run
    this.known = layOutBars(run.steps, run.total, first)
    const { slots } = this.known
    setAttribute(this.drawing, 'viewBox', `0 0 ${slots * SLOT} ${HEIGHT}`)
    setAttribute(this.drawing, 'shape-rendering', slots < DENSE ? 'auto' : 'crispEdges')
    setAttribute(this.drawing, 'aria-label', label)
    for (const [part, outline] of Object.entries(makePaths(this.known))) setAttribute(this.paths[part], 'd', outline)
  }

  /** Shows the numbers of the bar under the pointer. */
  showNumbers({ offsetX }) {
    const bar = this.known.bars[Math.floor((offsetX / this.element.clientWidth) * this.known.slots)]
    const values = bar && { step: bar.number, length: formatSeconds(bar.length), waiting: formatSeconds(bar.waiting) }
    setAttribute(this.element, 'title', bar ? this.t('panel.barTitle', values) : null)
  }
}
