// Draws an answer about a plan into an element: the mesh, what is said of it, or the error.

import { element } from '../elements.js'
import { brief, t } from '../text.js'
import { memoryWords } from './memory.js'
import { COMPACT_ABOVE, captionOf, cellWords, meshGroups, meshWords, remarkWords, stageCaption } from './mesh.js'
import { predictedWords } from './predicted.js'

const MAX_PATCHES_DRAWN = 16

/** Replaces what the element shows. answer: the server's. open: names of values that only a run can tell. */
export function draw(target, answer, open) {
  if (open.length) target.replaceChildren(line('paralleldit-plan-remark', t('plan.open', { names: open.join(', ') })))
  else if (answer.error) target.replaceChildren(errorBox(brief(answer.error)))
  else target.replaceChildren(...plan(answer))
}

/** Says, without alarm, that there is no answer. */
export function drawSilence(target, reason) {
  target.replaceChildren(line('paralleldit-plan-remark', t('plan.unanswered', { reason })))
}

function* plan(answer) {
  if (answer.plan) {
    const count = t(answer.world === 1 ? 'plan.one_rank' : 'plan.ranks', { count: answer.world })
    yield line('paralleldit-plan-title', answer.world === 1 ? count : `${count} · ${answer.plan}`)
  }
  if (answer.ranks.length) yield* mesh(answer)
  for (const words of memoryWords(answer, meshGroups(answer), t)) yield line('paralleldit-plan-memory', words)
  yield* predictions(predictedWords(answer, t))
  for (const remark of answer.note) yield line('paralleldit-plan-note', remarkWords(remark, t))
  for (const remark of answer.remarks) yield line('paralleldit-plan-remark', remarkWords(remark, t))
  for (const words of answer.unknown) yield line('paralleldit-plan-remark', brief(words))
}

function* predictions(words) {
  if (!words) return
  if (words.alone) yield line('paralleldit-plan-note', words.alone)
  if (words.own) yield line('paralleldit-plan-memory', words.own)
  yield line('paralleldit-plan-memory', words.title)
  const rows = words.best.map((each, place) => {
    const row = element('li', {}, each)
    if (place === words.chosen) row.setAttribute('aria-current', 'true')
    return row
  })
  const list = element('ol', { class: 'paralleldit-plan-predicted' }, ...rows)
  list.dataset.testid = 'paralleldit-plan-predicted'
  yield list
}

function* mesh(answer) {
  const groups = meshGroups(answer)
  const compact = answer.ranks.length > COMPACT_ABOVE ? ' paralleldit-plan-compact' : ''
  const drawn = element('div', { class: `paralleldit-plan-mesh${compact}` })
  drawn.setAttribute('role', 'img')
  drawn.setAttribute('aria-label', meshWords(groups, answer.world, t))
  for (const group of groups) {
    drawn.append(
      box(
        'paralleldit-plan-group',
        captionOf(group, t),
        group.stages.map((part) => stage(part, group))
      )
    )
  }
  yield drawn
  const [cell] = groups[0].stages[0].cells
  const kinds = ['tokens', cell.heads && 'heads', cell.weights && 'weights'].filter(Boolean)
  if (answer.ranks.length > 1 && (kinds.length > 1 || cell.tokens[0][1] < 1)) yield legend(kinds)
}

function stage(part, group) {
  const cells = part.cells.map((cell) => {
    const rank = element('span', { class: 'paralleldit-plan-rank' }, String(cell.rank))
    const tile = element('div', { class: 'paralleldit-plan-cell' }, rank, bar('tokens', cell.tokens))
    if (cell.heads) tile.append(bar('heads', [cell.heads]))
    if (cell.weights) tile.append(bar('weights', [cell.weights]))
    tile.title = cellWords(cell, group, part, t)
    return tile
  })
  return box('paralleldit-plan-stage', stageCaption(part, t), cells)
}

/** A bar of a whole, of which these [start, stop] are filled; with several, the whole falls into so many patches. */
function bar(kind, spans) {
  const patches = spans.length <= MAX_PATCHES_DRAWN ? spans : spans.slice(0, MAX_PATCHES_DRAWN)
  const pieces = patches.map(([start, stop], patch) => {
    const fill = element('i', { class: 'paralleldit-plan-fill' })
    fill.style.marginInlineStart = `${(start * spans.length - patch) * 100}%`
    fill.style.inlineSize = `${(stop - start) * spans.length * 100}%`
    return element('span', { class: 'paralleldit-plan-piece' }, fill)
  })
  return element('div', { class: `paralleldit-plan-bar paralleldit-plan-${kind}` }, ...pieces)
}

function legend(kinds) {
  const keys = kinds.map((kind) => {
    const fill = element('i', { class: 'paralleldit-plan-fill' })
    return element('span', { class: `paralleldit-plan-key paralleldit-plan-${kind}` }, fill, t(`plan.${kind}`))
  })
  const list = element('div', { class: 'paralleldit-plan-legend' }, ...keys)
  list.setAttribute('aria-hidden', 'true')
  return list
}

function box(className, caption, children) {
  const frame = element('div', { class: caption ? `${className} paralleldit-plan-boxed` : className })
  if (caption) frame.append(element('div', { class: 'paralleldit-plan-caption' }, caption))
  frame.append(element('div', { class: 'paralleldit-plan-row' }, ...children))
  return frame
}

function errorBox(words) {
  const alert = line('paralleldit-plan-error', words)
  alert.setAttribute('role', 'alert')
  return alert
}

function line(className, words) {
  return element('div', { class: className }, words)
}
