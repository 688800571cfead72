// A run's steps as bars: how long each took, the part of it that was communication below.
// `bars` and `outlines` are pure; `Timeline` draws, a path for all bars of a colour, however many there are.

import { element, svg } from '../elements.mjs'
import { attribute } from './dom.mjs'

const HEIGHT = 40
const SLOT = 10
const GAP = 1.5
const DENSE = 80 // slots, from which on the bars are too thin for gaps between them
const MOST_SLOTS = 500 // as many steps of a run as the server keeps
const LEAST_SLOTS = 12 // so that a run of few steps has no broad blocks
const CLIP = 2 // medians; what took longer, as the first step often does, is cut off there
const CUT = { y: 4, height: 3 } // the mark of a bar that is cut off

/**
 * Bars of the steps, each [seconds, seconds of it in communication]: heights as shares of the drawing's.
 *
 * total: how many steps there will be, or null. first: the number of the first of these steps.
 */
export function bars(steps, total, first = 1) {
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

/** The paths of these bars: of computing, of communication, and of the marks where one is cut off. */
export function outlines({ slots, bars: drawn }) {
  const gap = slots < DENSE ? GAP : 0
  const found = { compute: '', communication: '', cut: '' }
  for (const [at, { height, below, cut }] of drawn.entries()) {
    const x = at * SLOT + gap / 2
    found.compute += box(x, HEIGHT * (1 - height), SLOT - gap, HEIGHT * (height - below))
    found.communication += box(x, HEIGHT * (1 - below), SLOT - gap, HEIGHT * below)
    if (cut) found.cut += box(at * SLOT, CUT.y, SLOT, CUT.height)
  }
  return found
}

const box = (x, y, width, height) =>
  height > 0 ? `M${x} ${y.toFixed(2)}h${width}v${height.toFixed(2)}h-${width}z` : ''

/** The drawing of one run. t: the texts; format: how seconds and shares are shown. */
export class Timeline {
  constructor(t, format) {
    this.t = t
    this.format = format
    this.paths = Object.fromEntries(
      ['compute', 'communication', 'cut'].map((part) => [part, svg('path', { class: `paralleldit-${part}` })])
    )
    this.drawing = svg('svg', { role: 'img', preserveAspectRatio: 'none' }, ...Object.values(this.paths))
    this.element = element('div', { class: 'paralleldit-timeline' }, this.drawing)
    this.element.addEventListener('pointermove', (event) => this.tell(event))
    this.known = bars([], null)
  }

  /** label: what the drawing says, for those who do not see it. */
  update(run, label) {
    const first = run.made - run.steps.length + 1 // of a long run, the server keeps the last ones
    this.known = bars(run.steps, run.total, first)
    const { slots } = this.known
    attribute(this.drawing, 'viewBox', `0 0 ${slots * SLOT} ${HEIGHT}`)
    attribute(this.drawing, 'shape-rendering', slots < DENSE ? 'auto' : 'crispEdges')
    attribute(this.drawing, 'aria-label', label)
    for (const [part, outline] of Object.entries(outlines(this.known))) attribute(this.paths[part], 'd', outline)
  }

  /** The numbers of the bar under the pointer. */
  tell({ offsetX }) {
    const bar = this.known.bars[Math.floor((offsetX / this.element.clientWidth) * this.known.slots)]
    const { seconds } = this.format
    const values = bar && { step: bar.number, length: seconds(bar.length), waiting: seconds(bar.waiting) }
    attribute(this.element, 'title', bar ? this.t('panel.barTitle', values) : null)
  }
}
